//! The helper's program.
//!
//! `connect` is what kandev runs: it passes on between its stdio and the serving process, and starts that if there is none.
//! `serve` is that process, with the listening socket as its stdin. The socket has a name and no file, so a container whose
//! root cannot be written to will do; nobody outside of the container's network can reach it.

mod connect;
mod failure;
mod files;
mod outgoing;
mod paths;
mod ring;
mod serve;
mod terminal;
mod terminals;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::process::ExitCode;
use std::time::Duration;

/// How long terminals are kept for a server that has gone.
const KEEP: Duration = Duration::from_mins(10);
/// The second role.
const SERVE: &str = "serve";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let seconds = args.get(1).and_then(|seconds| seconds.parse().ok());
    let keep = seconds.map_or(KEEP, Duration::from_secs);
    let done = match args.first().map(String::as_str) {
        Some(kandev_helper::CONNECT) => connect::connect(keep),
        Some(SERVE) => listen(keep),
        _ => Err(io::Error::other(
            "this is a part of kandev, and of no use by itself",
        )),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The one thing that is ever said there; a stderr that is closed has no reader.
            let _ = io::Write::write_all(&mut io::stderr(), format!("kandev-helper: {error}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn listen(keep: Duration) -> io::Result<()> {
    // Out of the session of whoever started it. It may be the first of one already.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    let listener = UnixListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    serve::serve(&listener, keep)
}
