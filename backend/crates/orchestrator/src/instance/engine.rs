//! What the engine is asked for an instance, and what its answers lead to. One call at a time runs beside the loop.

use std::sync::Arc;

use kandev_acp::FrameWriter;
use kandev_domain::LogLevel;
use kandev_runtime::ContainerId;
use tokio::io::AsyncWrite;
use tokio_util::task::TaskTracker;

use super::actor::{Actor, Connected, EngineDone, Link, Phase};
use super::catch_up::Stdio;
use super::pump;
use crate::launch::{container_spec, labels};

impl Actor {
    pub(super) fn create(&mut self) {
        let shared = Arc::clone(&self.shared);
        let owner = shared.settings.owner.clone();
        let spec = container_spec(&self.spec, &shared.settings);
        let mut volume_labels = labels(&self.spec, &owner);
        volume_labels.remove(kandev_runtime::LABEL_INSTANCE);
        volume_labels.remove(kandev_runtime::LABEL_TASK);
        self.engine = Some(Box::pin(async move {
            for mount in &spec.mounts {
                if let kandev_runtime::MountSource::Volume(name) = &mount.source
                    && let Err(error) = shared.runtime.ensure_volume(name, &volume_labels).await
                {
                    return EngineDone::Created(Err(error));
                }
            }
            EngineDone::Created(shared.runtime.create(&spec).await)
        }));
    }

    pub(super) fn connect(&mut self, id: ContainerId) {
        let runtime = Arc::clone(&self.shared.runtime);
        self.phase = Phase::Connecting;
        self.engine = Some(Box::pin(async move {
            let connect = async {
                let attachment = runtime.attach(&id).await?;
                let exit = runtime.wait(&id).await?;
                runtime.start(&id).await?;
                let (stdio, sign) = (attachment.into(), runtime.run_sign(&id).await.ok());
                Ok(Connected { stdio, exit, sign })
            };
            EngineDone::Connected(connect.await)
        }));
    }

    pub(super) fn engine_done(&mut self, done: EngineDone) {
        match done {
            EngineDone::Created(Ok(id)) => {
                self.container = Some(id.clone());
                self.log(LogLevel::Info, format!("container {} created", short(&id)));
                let container_id = id.0.clone();
                self.outbox.patch(|p| p.container_id = Some(container_id));
                if self.ending.is_some() {
                    return self.settle();
                }
                self.reply_created(Ok(()));
                // Before the start: the agent may answer before it is asked.
                self.prepare_handshake();
                self.connect(id);
            }
            EngineDone::Created(Err(error)) => self.could_not_create("create", &error),
            EngineDone::Reconnected(result, away) => self.reconnected(result, away),
            EngineDone::Connected(Ok(connected)) => self.connected(connected),
            EngineDone::Connected(Err(error)) => self.could_not_create("start", &error),
            EngineDone::Stopped(_) if self.is_over() => {}
            EngineDone::Stopped(Ok(())) => self.expect_exit(),
            EngineDone::Stopped(Err(error)) => {
                self.log(
                    LogLevel::Warn,
                    format!("the container could not be stopped: {error}"),
                );
                self.settle();
            }
            EngineDone::Removed(result) => self.removed(result),
        }
    }

    fn connected(&mut self, connected: Connected) {
        self.link(connected);
        self.breaks.is_up_to_date();
        self.inside.is_found();
        self.phase = Phase::Handshaking;
        if self.ending.is_some() {
            return self.terminate();
        }
        self.begin_handshake();
    }

    pub(super) fn link(&mut self, connected: Connected) {
        // Who wrote to it before may have been cut off in the middle of a frame.
        let is_cut = !self.ambiguous.is_empty() || self.inside.is_asked();
        let spawn = if is_cut {
            FrameWriter::spawn_after_another
        } else {
            FrameWriter::spawn
        };
        self.link_by(connected.stdio, false, spawn);
        self.exit = Some(connected.exit);
        self.breaks.next_sign = connected.sign;
    }

    pub(super) fn link_to(&mut self, stdio: Stdio, from_log: bool) {
        self.link_by(stdio, from_log, FrameWriter::spawn);
    }

    fn link_by(
        &mut self,
        stdio: Stdio,
        from_log: bool,
        spawn: fn(std::pin::Pin<Box<dyn AsyncWrite + Send>>, &TaskTracker) -> FrameWriter,
    ) {
        let tracker = &self.shared.tracker;
        let Stdio { stdin, output } = stdio;
        let writer = spawn(stdin, tracker);
        self.link = Some(Link {
            written: writer.written(),
            writer,
            pump: pump::start(output, self.shared.settings.max_line_bytes, tracker),
            ended: false,
            from_log,
            rest: Vec::new(),
        });
        if !from_log {
            self.frames_go_on();
        }
    }
}

fn short(id: &ContainerId) -> &str {
    id.0.get(..12).unwrap_or(&id.0)
}
