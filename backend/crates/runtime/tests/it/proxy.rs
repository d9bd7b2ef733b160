//! A socket that leads to the engine and can be cut.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::raw;

pub(crate) struct Proxy {
    path: PathBuf,
    /// The listener and its connections; all end when it is dropped.
    tasks: JoinSet<()>,
    _dir: TempDir,
}

impl Proxy {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut proxy = Self {
            path: dir.path().join("engine.sock"),
            tasks: JoinSet::new(),
            _dir: dir,
        };
        proxy.restore();
        proxy
    }

    pub(crate) fn host(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    pub(crate) async fn cut(&mut self) {
        self.tasks.shutdown().await;
        std::fs::remove_file(&self.path).unwrap();
    }

    pub(crate) fn restore(&mut self) {
        self.tasks.spawn(serve(listen(&self.path)));
    }
}

fn listen(path: &Path) -> UnixListener {
    UnixListener::bind(path).unwrap()
}

async fn serve(listener: UnixListener) {
    let mut connections = JoinSet::new();
    loop {
        let (mut near, _) = listener.accept().await.unwrap();
        connections.spawn(async move {
            let mut far = UnixStream::connect(raw::socket()).await.unwrap();
            tokio::io::copy_bidirectional(&mut near, &mut far).await.ok();
        });
    }
}
