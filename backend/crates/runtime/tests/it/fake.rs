//! A made-up engine on a socket of its own.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

/// What it does with a request.
pub(crate) enum Reply {
    Json(u16, String),
    /// Never answers.
    Hang,
    /// Answers with a head and never with a body.
    HangInBody,
    /// Upgrades, sends these pieces one by one, and closes.
    Raw(Vec<Vec<u8>>),
    /// Hangs up.
    Close,
}

type Behaviour = dyn FnMut(&str) -> Reply + Send;

pub(crate) struct Fake {
    path: PathBuf,
    /// `METHOD target` of all requests.
    seen: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
    _dir: TempDir,
}

impl Fake {
    pub(crate) fn new(behaviour: impl FnMut(&str) -> Reply + Send + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("engine.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let seen = Arc::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(
            listener,
            Arc::new(Mutex::new(behaviour)),
            Arc::clone(&seen),
        ));
        Self {
            path,
            seen,
            _tasks: tasks,
            _dir: dir,
        }
    }

    pub(crate) fn host(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

/// The answer to `GET /version`.
pub(crate) fn version(min: &str, max: &str) -> Reply {
    let json = format!(r#"{{"Version":"fake","ApiVersion":"{max}","MinAPIVersion":"{min}"}}"#);
    Reply::Json(200, json)
}

async fn serve(listener: UnixListener, behaviour: Arc<Mutex<Behaviour>>, seen: Arc<Mutex<Vec<String>>>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (behaviour, seen) = (Arc::clone(&behaviour), Arc::clone(&seen));
        connections.spawn(async move {
            answer(stream, &behaviour, &seen).await.ok();
        });
    }
}

async fn answer(
    mut stream: UnixStream,
    behaviour: &Mutex<Behaviour>,
    seen: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap();
    let line = head
        .lines()
        .next()
        .unwrap()
        .trim_end_matches(" HTTP/1.1")
        .to_owned();
    let reply = (*behaviour.lock().unwrap())(&line);
    seen.lock().unwrap().push(line);
    match reply {
        Reply::Json(status, json) => {
            let head = format!(
                "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{json}",
                json.len()
            );
            stream.write_all(head.as_bytes()).await?;
            stream.shutdown().await
        }
        Reply::Hang => std::future::pending().await,
        Reply::HangInBody => {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n")
                .await?;
            std::future::pending().await
        }
        Reply::Raw(pieces) => {
            let head = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n";
            // The first bytes may come with the head.
            let first = pieces.first().cloned().unwrap_or_default();
            stream.write_all(&[&head[..], &first].concat()).await?;
            for piece in pieces.iter().skip(1) {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                stream.write_all(piece).await?;
            }
            stream.shutdown().await
        }
        Reply::Close => Ok(()),
    }
}
