//! Containers of one test, gone when it ends, however it ends.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use kandev_runtime::docker::{DockerRuntime, Limits};
use kandev_runtime::{
    Attachment, Channel, ContainerId, ContainerRuntime, ContainerSpec, ExitStatus, ExitWatch, LABEL_MANAGED,
    LABEL_OWNER, Network, OutputStream, Result,
};
use serde_json::{Value, json};

use crate::raw;

/// A runtime and a deployment's name of its own.
pub(crate) struct World {
    pub(crate) runtime: DockerRuntime,
    pub(crate) owner: String,
    made: AtomicU32,
}

/// A started container.
pub(crate) struct Running {
    pub(crate) id: ContainerId,
    pub(crate) attachment: Attachment,
    pub(crate) exit: ExitWatch,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    pub(crate) fn with_limits(limits: Limits) -> Self {
        Self::at(&format!("unix://{}", raw::socket()), limits)
    }

    /// Over another socket that leads to the engine.
    pub(crate) fn at(host: &str, limits: Limits) -> Self {
        static WORLDS: AtomicU32 = AtomicU32::new(0);
        raw::ensure_image();
        let number = WORLDS.fetch_add(1, Ordering::Relaxed);
        Self {
            runtime: DockerRuntime::connect_with(Some(host), limits).unwrap(),
            owner: format!("kandev-test-{}-{number}", std::process::id()),
            made: AtomicU32::new(0),
        }
    }

    /// A container whose first process is a shell with this script.
    pub(crate) fn spec(&self, script: &str) -> ContainerSpec {
        ContainerSpec {
            name: format!("{}-{}", self.owner, self.made.fetch_add(1, Ordering::Relaxed)),
            image: raw::IMAGE.to_owned(),
            entrypoint: Some(vec!["/bin/sh".to_owned(), "-c".to_owned()]),
            args: vec![script.to_owned()],
            env: [("PATH".to_owned(), "/bin".to_owned())].into(),
            labels: [
                (LABEL_MANAGED.to_owned(), "true".to_owned()),
                (LABEL_OWNER.to_owned(), self.owner.clone()),
            ]
            .into(),
            working_dir: "/workspace".to_owned(),
            mounts: Vec::new(),
            memory_bytes: 64 << 20,
            cpu_cores: 1.0,
            pids_limit: 200,
            network: Network::None,
            user: None,
            cap_add: Vec::new(),
            read_only_root: false,
            log_max_bytes: 8 << 20,
            log_max_files: 2,
        }
    }

    /// Creates, attaches, watches and starts, in the order that loses nothing.
    pub(crate) async fn run(&self, spec: &ContainerSpec) -> Result<Running> {
        let id = self.runtime.create(spec).await?;
        let attachment = self.runtime.attach(&id).await?;
        let exit = self.runtime.wait(&id).await?;
        self.runtime.start(&id).await?;
        Ok(Running { id, attachment, exit })
    }

    pub(crate) async fn run_script(&self, script: &str) -> Running {
        self.run(&self.spec(script)).await.unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let filters = json!({ "label": [format!("{LABEL_OWNER}={}", self.owner)] }).to_string();
        let filters = raw::encode(&filters);
        let listed = raw::json(
            "GET",
            &format!("/containers/json?all=1&filters={filters}"),
            &Value::Null,
        );
        for container in listed.as_array().into_iter().flatten() {
            let id = container["Id"].as_str().unwrap_or_default();
            raw::request(
                "DELETE",
                &format!("/containers/{id}?force=1&v=1"),
                "text/plain",
                b"",
            );
        }
        let listed = raw::json("GET", &format!("/volumes?filters={filters}"), &Value::Null);
        for volume in listed["Volumes"].as_array().into_iter().flatten() {
            let name = volume["Name"].as_str().unwrap_or_default();
            raw::request("DELETE", &format!("/volumes/{name}?force=1"), "text/plain", b"");
        }
    }
}

/// The whole of an output, channel by channel.
pub(crate) async fn collect(output: OutputStream) -> (Vec<u8>, Vec<u8>) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut output = output;
    while let Some(chunk) = output.next().await {
        let chunk = chunk.unwrap();
        match chunk.channel {
            Channel::Stdout => out.extend_from_slice(&chunk.bytes),
            Channel::Stderr => err.extend_from_slice(&chunk.bytes),
        }
    }
    (out, err)
}

/// Reads until stdout has held this text.
pub(crate) async fn until(output: &mut OutputStream, text: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(text) {
        let chunk = within(20, output.next()).await;
        let chunk = chunk
            .unwrap_or_else(|| panic!("the output ended after {seen:?}"))
            .unwrap();
        seen.push_str(std::str::from_utf8(&chunk.bytes).unwrap());
    }
    seen
}

/// Fails a test that hangs.
pub(crate) async fn within<T>(seconds: u64, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(seconds), future)
        .await
        .unwrap_or_else(|_| panic!("nothing within {seconds} s"))
}

pub(crate) const fn exited(code: i64) -> ExitStatus {
    ExitStatus {
        code,
        oom_killed: false,
        oom_hint: false,
        error: None,
    }
}
