//! `kandev serve` as a process, and a client of it.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command as StdCommand, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::database::Database;

/// A server in a directory of its own. [`Kandev::end`] removes all that it made; dropped before, it is killed.
pub(crate) struct Kandev {
    command: Serve,
    child: Child,
    dir: TempDir,
    /// Its database.
    pub(crate) database: Database,
    /// `http://…`.
    pub(crate) base: String,
    /// A client.
    pub(crate) http: reqwest::Client,
}

/// How it is started, as often as needed.
struct Serve {
    binary: PathBuf,
    environment: Vec<(&'static str, String)>,
    log: PathBuf,
}

/// The kernel's USER_HZ, which it shows to programs whatever its own is.
const TICKS_PER_SECOND: f64 = 100.0;
const READY_LIMIT: Duration = Duration::from_mins(1);

impl Kandev {
    /// Starts it and waits until it is ready.
    pub(crate) async fn start(binary: &Path, owner: &str, image: &str, database: Database) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("kandev-bench-").tempdir()?;
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("workspaces"))?;
        std::fs::create_dir(path("agents"))?;
        std::fs::write(path("agents/bench-agent.toml"), agent_type(image))?;
        // Known before the start, so that it stays the same over a restart.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let command = Serve {
            binary: binary.to_owned(),
            environment: vec![
                ("DATABASE_URL", database.url.clone()),
                ("KANDEV_LISTEN", format!("127.0.0.1:{port}")),
                ("KANDEV_DATA_DIR", text(path("data"))),
                ("KANDEV_AGENTS_DIR", text(path("agents"))),
                ("KANDEV_WORKSPACE_ROOTS", text(path("workspaces"))),
                ("KANDEV_OWNER", owner.to_owned()),
                ("KANDEV_MAX_INSTANCES", "256".to_owned()),
                ("RUST_LOG", "warn".to_owned()),
            ],
            log: path("log"),
        };
        let server = Self {
            child: command.spawn()?,
            command,
            dir,
            database,
            base: format!("http://127.0.0.1:{port}"),
            http: reqwest::Client::new(),
        };
        let deadline = Instant::now() + READY_LIMIT;
        while !server.is_ready().await {
            ensure!(
                Instant::now() < deadline,
                "kandev is not ready:\n{}",
                server.log()
            );
            sleep(Duration::from_millis(50)).await;
        }
        Ok(server)
    }

    async fn is_ready(&self) -> bool {
        let answer = self.http.get(format!("{}/ready", self.base)).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.command.log).unwrap_or_default()
    }

    /// SIGKILL.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// The same server again, after [`kill`](Self::kill).
    pub(crate) fn start_again(&mut self) -> Result<()> {
        self.child = self.command.spawn()?;
        Ok(())
    }

    /// A directory to work on, under the server's root.
    pub(crate) fn workspace(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.path().join("workspaces").join(name);
        std::fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Launches an agent and waits for its session. The id.
    pub(crate) async fn launch(&self, workspace: &Path) -> Result<String> {
        let body = json!({"agent_type": "bench-agent", "workspace_path": workspace, "wait": "ready"});
        let answer = self.post("/agents/launch", &body).await?;
        ensure!(answer["status"] == "running", "a launch failed: {answer}");
        Ok(answer["id"].as_str().context("no id")?.to_owned())
    }

    /// Starts a turn.
    pub(crate) async fn prompt(&self, id: &str, text: &str) -> Result<()> {
        let path = format!("/agents/{id}/prompt");
        self.post(&path, &json!({"message": text})).await.map(drop)
    }

    /// The same as a future of its own, for several at once.
    pub(crate) fn prompt_owned(&self, id: &str, text: &str) -> impl Future<Output = Result<()>> + use<> {
        let request = self.http.post(format!("{}/api/v1/agents/{id}/prompt", self.base));
        let sent = request.json(&json!({"message": text})).send();
        async move {
            sent.await?.error_for_status()?;
            Ok(())
        }
    }

    /// Ends an agent.
    pub(crate) async fn stop(&self, id: &str) -> Result<()> {
        let path = format!("/agents/{id}/stop");
        self.post(&path, &json!({"force": true})).await.map(drop)
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let request = self.http.post(format!("{}/api/v1{path}", self.base)).json(body);
        let answer = request.send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        ensure!(status.is_success(), "POST {path}: {status} {text}");
        Ok(serde_json::from_str(&text)?)
    }

    /// Resident memory, in KiB.
    pub(crate) fn resident_kib(&self) -> Result<u64> {
        let status = self.proc("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        Ok(kib.context("no VmRSS")?.parse()?)
    }

    /// Time on the processor so far, in seconds.
    pub(crate) fn cpu_seconds(&self) -> Result<f64> {
        let stat = self.proc("stat")?;
        // The name in parentheses may have spaces; after it come state (field 3) and so on.
        let fields = stat.rsplit_once(')').context("/proc/stat")?.1;
        let ticks: u64 = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<u64>().ok())
            .sum();
        Ok(ticks as f64 / TICKS_PER_SECOND)
    }

    fn proc(&self, file: &str) -> Result<String> {
        let pid = self.child.id().context("kandev has ended")?;
        Ok(std::fs::read_to_string(format!("/proc/{pid}/{file}"))?)
    }

    /// Ends the server, and removes its containers, volumes and database.
    pub(crate) async fn end(mut self) -> Result<()> {
        if let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            kill_process(pid, Signal::TERM)?;
            if timeout(READY_LIMIT, self.child.wait()).await.is_err() {
                self.child.kill().await?;
            }
        }
        let log = self.log();
        if !log.is_empty() {
            eprint_log(&log);
        }
        self.database.drop_it().await
    }
}

/// What the server had to say.
fn eprint_log(log: &str) {
    use std::io::Write as _;
    let last: Vec<&str> = log.lines().rev().take(20).collect();
    for line in last.iter().rev() {
        let _ = writeln!(std::io::stderr(), "kandev: {line}");
    }
}

impl Serve {
    fn spawn(&self) -> Result<Child> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let child = Command::new(&self.binary)
            .arg("serve")
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs(std::env::var_os("DOCKER_HOST").map(|host| ("DOCKER_HOST", host)))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn();
        child.with_context(|| format!("{} cannot be started", self.binary.display()))
    }
}

/// The catalogue's mock agent, less what is of no interest here.
fn agent_type(image: &str) -> String {
    format!(
        "id = 'bench-agent'\nname = 'Bench'\nimage = '{image}'\nmemory_mb = 256\nnetwork = 'none'\n\
         [[mounts]]\nsource = '{{workspace}}'\ntarget = '/workspace'\n\
         [[mounts]]\nsource = '{{session_store}}'\ntarget = '/sessions'\n"
    )
}

/// Removes every container and volume with this label: what a failed run left, too.
pub(crate) fn remove_all(owner: &str) -> Result<()> {
    let label = format!("label=kandev.owner={owner}");
    let docker = |arguments: &[&str]| -> Result<String> {
        let done = StdCommand::new("docker").args(arguments).output()?;
        ensure!(
            done.status.success(),
            "docker: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        Ok(String::from_utf8(done.stdout)?)
    };
    let containers = docker(&["ps", "-aq", "--filter", &label])?;
    for ids in containers.split_whitespace().collect::<Vec<_>>().chunks(20) {
        docker(&[&["rm", "-f"], ids].concat())?;
    }
    let volumes = docker(&["volume", "ls", "-q", "--filter", &label])?;
    for names in volumes.split_whitespace().collect::<Vec<_>>().chunks(20) {
        docker(&[&["volume", "rm", "-f"], names].concat())?;
    }
    Ok(())
}
