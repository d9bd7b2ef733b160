//! A connection on stdin and stdout.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use kandev_helper::VERSION;

use crate::SERVE;

/// How often it is tried: the serving process may be about to end.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn connect(keep: Duration) -> io::Result<()> {
    let socket = open(keep)?;
    let mut to_helper = socket.try_clone()?;
    let mut from_helper = socket;
    let thread = std::thread::Builder::new().name("stdin".to_owned());
    thread.spawn(move || {
        // However it ends, nobody is there any more.
        let _ = io::copy(&mut io::stdin().lock(), &mut to_helper);
        let _ = to_helper.shutdown(Shutdown::Both);
    })?;
    let mut stdout = io::stdout().lock();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = io::Read::read(&mut from_helper, &mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        // Not by lines, which the locked stdout would wait for.
        stdout.write_all(&buffer[..count])?;
        stdout.flush()?;
    }
}

fn open(keep: Duration) -> io::Result<UnixStream> {
    let address = SocketAddr::from_abstract_name(format!("kandev-helper-v{VERSION}"))?;
    let mut tries = 0;
    loop {
        if let Ok(socket) = UnixStream::connect_addr(&address) {
            return Ok(socket);
        }
        match UnixListener::bind_addr(&address) {
            Ok(listener) => start(listener, keep)?,
            // Another one was faster, or the old one has not quite ended.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries < TRIES => {
                tries += 1;
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Starts the serving process, which outlives this one.
fn start(listener: UnixListener, keep: Duration) -> io::Result<()> {
    let child = Command::new("/proc/self/exe")
        .arg(SERVE)
        .arg(keep.as_secs().to_string())
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    drop(child);
    Ok(())
}
