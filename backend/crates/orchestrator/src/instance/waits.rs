//! What an instance's task waits for, one function each. All are cancel safe.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use kandev_acp::FrameWriter;

use super::actor::{Link, Phase};
use super::pump::Output;
use crate::slots::Slot;

/// Waits for what is there; for ever if nothing is.
pub(super) async fn next<T>(future: &mut Option<Pin<Box<dyn Future<Output = T> + Send>>>) -> T {
    match future {
        Some(future) => future.as_mut().await,
        None => std::future::pending().await,
    }
}

/// Waits for a slot.
pub(super) async fn granted(phase: &mut Phase) -> Option<Slot> {
    match phase {
        // The queue outlives every place in it.
        Phase::Queued(place) => (&mut place.turn).await.ok(),
        _ => std::future::pending().await,
    }
}

/// Sends a frame that found the writer's queue full. False if the agent takes none any more.
pub(super) async fn send_first(writer: Option<FrameWriter>, frame: Option<Bytes>) -> bool {
    match (writer, frame) {
        (Some(writer), Some(frame)) => writer.send(frame).await.is_ok(),
        _ => false,
    }
}

/// What happened on the way to the container.
pub(super) enum LinkStep {
    /// So many frames have been written.
    Written(u64),
    /// There is output; none if the reader stopped.
    Output(Option<Output>),
}

/// Waits for the next thing on the way to the container.
pub(super) async fn next_of_link(
    link: &mut Option<Link>,
    takes_output: bool,
    has_unwritten: bool,
) -> LinkStep {
    let Some(link) = link else {
        return std::future::pending().await;
    };
    tokio::select! {
        biased;
        Ok(()) = link.written.changed(), if has_unwritten => LinkStep::Written(*link.written.borrow_and_update()),
        output = link.pump.output.recv(), if takes_output => LinkStep::Output(output),
        else => std::future::pending().await,
    }
}
