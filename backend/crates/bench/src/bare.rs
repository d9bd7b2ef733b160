//! The same agent in the same container with no kandev around it: the baseline.

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use futures_util::StreamExt as _;
use kandev_acp::{Line, LineDecoder};
use kandev_runtime::docker::DockerRuntime;
use kandev_runtime::{
    Attachment, Channel, ContainerId, ContainerRuntime as _, ContainerSpec, LABEL_MANAGED, LABEL_OWNER,
    Labels, Mount, MountSource, Network, OutputStream,
};
use serde_json::{Value, json};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

/// Where bare agents come from.
#[derive(Debug, Clone)]
pub(crate) struct Bare {
    /// The engine.
    pub(crate) runtime: Arc<DockerRuntime>,
    /// The label of all that is made.
    pub(crate) owner: String,
    /// The agent's image.
    pub(crate) image: String,
}

/// An agent with a session, attached.
pub(crate) struct BareAgent {
    bare: Bare,
    id: ContainerId,
    stdin: Pin<Box<dyn AsyncWrite + Send>>,
    output: OutputStream,
    decoder: LineDecoder,
    session: String,
    /// Lines that were read beyond what was asked for.
    ahead: usize,
}

impl Bare {
    /// Makes the volume of the agents' sessions.
    pub(crate) async fn prepare(&self) -> Result<()> {
        Ok(self.runtime.ensure_volume(&self.volume(), &self.labels()).await?)
    }

    fn volume(&self) -> String {
        format!("{}-bare-sessions", self.owner)
    }

    fn labels(&self) -> Labels {
        BTreeMap::from([
            (LABEL_MANAGED.to_owned(), "true".to_owned()),
            (LABEL_OWNER.to_owned(), self.owner.clone()),
        ])
    }

    /// Create, attach, start, `initialize`, `session/new`: as kandev does it.
    pub(crate) async fn launch(&self, name: &str, workspace: &Path) -> Result<BareAgent> {
        let spec = ContainerSpec {
            name: format!("{}-{name}", self.owner),
            image: self.image.clone(),
            entrypoint: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            labels: self.labels(),
            working_dir: "/workspace".to_owned(),
            mounts: vec![
                mount(
                    MountSource::Host(workspace.to_string_lossy().into_owned()),
                    "/workspace",
                ),
                mount(MountSource::Volume(self.volume()), "/sessions"),
            ],
            memory_bytes: 256 << 20,
            cpu_cores: 1.0,
            pids_limit: 512,
            network: Network::None,
            user: None,
            cap_add: Vec::new(),
            read_only_root: false,
            log_max_bytes: 64 << 20,
            log_max_files: 3,
        };
        let id = self.runtime.create(&spec).await?;
        let Attachment { stdin, output } = self.runtime.attach(&id).await?;
        self.runtime.start(&id).await?;
        let mut agent = BareAgent {
            bare: self.clone(),
            id,
            stdin,
            output,
            decoder: LineDecoder::default(),
            session: String::new(),
            ahead: 0,
        };
        agent
            .call(
                1,
                "initialize",
                &json!({"protocolVersion": 1, "clientCapabilities": {}}),
            )
            .await?;
        let params = json!({"cwd": "/workspace", "mcpServers": []});
        let made = agent.call(2, "session/new", &params).await?;
        made["sessionId"]
            .as_str()
            .context("no session")?
            .clone_into(&mut agent.session);
        Ok(agent)
    }
}

fn mount(source: MountSource, target: &str) -> Mount {
    Mount {
        source,
        target: target.to_owned(),
        read_only: false,
    }
}

impl BareAgent {
    async fn send(&mut self, id: u64, method: &str, params: &Value) -> Result<()> {
        let frame = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.stdin.write_all(format!("{frame}\n").as_bytes()).await?;
        Ok(self.stdin.flush().await?)
    }

    async fn call(&mut self, id: u64, method: &str, params: &Value) -> Result<Value> {
        self.send(id, method, params).await?;
        while let Some(chunk) = self.output.next().await {
            let chunk = chunk?;
            if chunk.channel != Channel::Stdout {
                continue;
            }
            let mut answer = None;
            for line in self.decoder.push(chunk.bytes) {
                let Line::Complete(line) = line else { continue };
                let mut frame: Value = serde_json::from_slice(&line)?;
                if frame["id"] == id && frame["method"].is_null() {
                    answer = Some(frame["result"].take());
                } else {
                    self.ahead += 1;
                }
            }
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
        bail!("the agent ended before it answered {method}")
    }

    /// Reads what the agent says by itself when it has a session: its commands.
    pub(crate) async fn greeted(mut self) -> Result<Self> {
        self.discard(1).await?;
        Ok(self)
    }

    /// Starts a turn.
    pub(crate) async fn prompt(&mut self, text: &str) -> Result<()> {
        let params = json!({"sessionId": self.session, "prompt": [{"type": "text", "text": text}]});
        self.send(3, "session/prompt", &params).await
    }

    /// Reads so many lines and does nothing with them.
    pub(crate) async fn discard(&mut self, lines: usize) -> Result<()> {
        while self.ahead < lines {
            let chunk = self.output.next().await.context("the agent ended early")??;
            self.ahead += memchr::memchr_iter(b'\n', &chunk.bytes).count();
        }
        self.ahead -= lines;
        Ok(())
    }

    /// Reads so many lines and shows each, also those beyond that came with them.
    pub(crate) async fn read(&mut self, lines: usize, mut each: impl FnMut(&[u8])) -> Result<()> {
        while self.ahead < lines {
            let chunk = self.output.next().await.context("the agent ended early")??;
            for line in self.decoder.push(chunk.bytes) {
                if let Line::Complete(line) = line {
                    each(&line);
                    self.ahead += 1;
                }
            }
        }
        self.ahead -= lines;
        Ok(())
    }

    /// Removes the container.
    pub(crate) async fn remove(self) -> Result<()> {
        drop(self.output);
        Ok(self.bare.runtime.remove(&self.id).await?)
    }
}
