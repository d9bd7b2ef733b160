//! What a container is made of.
//!
//! Source: `POST /containers/create` of the Docker Engine API reference.

use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::{Client, Subject};
use crate::error::Result;
use crate::types::{ContainerId, ContainerSpec, Mount, MountSource, Network};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Created {
    id: String,
    #[serde(default)]
    warnings: Option<Vec<String>>,
}

pub(super) async fn create(client: &Client, spec: &ContainerSpec) -> Result<ContainerId> {
    let call = client
        .call("create", Method::POST, "/containers/create")
        .about(Subject::Image(&spec.image))
        .query("name", &spec.name)
        .json(&config(spec));
    let created: Created = client.json(&call).await?;
    for warning in created.warnings.unwrap_or_default() {
        tracing::warn!(container = spec.name, %warning, "the engine warns of a container it made");
    }
    Ok(ContainerId(created.id))
}

fn config(spec: &ContainerSpec) -> Value {
    let mut config = json!({
        "Image": spec.image,
        "Cmd": spec.args,
        "Env": environment(&spec.env),
        "Labels": spec.labels,
        "WorkingDir": spec.working_dir,
        "Tty": false,
        // stdin stays open when the backend that attached to it dies, for the next one.
        "OpenStdin": true,
        "StdinOnce": false,
        "AttachStdin": true,
        "AttachStdout": true,
        "AttachStderr": true,
        // An image may ask for another signal, and a graceful stop is SIGTERM here.
        "StopSignal": "SIGTERM",
        "HostConfig": host_config(spec),
    });
    if let Some(entrypoint) = &spec.entrypoint {
        config["Entrypoint"] = json!(entrypoint);
    }
    if let Some(user) = &spec.user {
        config["User"] = json!(user);
    }
    config
}

fn host_config(spec: &ContainerSpec) -> Value {
    json!({
        "Mounts": spec.mounts.iter().map(mount).collect::<Vec<_>>(),
        "Memory": spec.memory_bytes,
        // Memory and swap together: no swap.
        "MemorySwap": spec.memory_bytes,
        "NanoCpus": (spec.cpu_cores * 1e9).round() as i64,
        "PidsLimit": spec.pids_limit,
        // A first process that reaps, since agents and what they start do not.
        "Init": true,
        "SecurityOpt": ["no-new-privileges"],
        "CapDrop": ["ALL"],
        "CapAdd": spec.cap_add,
        "IpcMode": "private",
        "NetworkMode": match &spec.network {
            Network::Bridge => "bridge",
            Network::None => "none",
            Network::Named(name) => name,
        },
        // The one driver whose log gives back what was written: `local` of Docker 20.10 drops newlines.
        "LogConfig": { "Type": "json-file", "Config": {
            "max-size": spec.log_max_bytes.max(1).to_string(),
            "max-file": spec.log_max_files.max(1).to_string(),
        } },
        // Removal by the engine would race the reading of the exit status.
        "AutoRemove": false,
        "RestartPolicy": { "Name": "no" },
    })
}

/// A host path must exist: unlike `Binds`, `Mounts` does not make an empty directory, owned by root, in its place.
fn mount(mount: &Mount) -> Value {
    let (kind, source) = match &mount.source {
        MountSource::Host(path) => ("bind", path),
        MountSource::Volume(name) => ("volume", name),
    };
    json!({ "Type": kind, "Source": source, "Target": mount.target, "ReadOnly": mount.read_only })
}

/// As the engine takes it.
pub(super) fn environment(env: &std::collections::BTreeMap<String, String>) -> Vec<String> {
    env.iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> ContainerSpec {
        ContainerSpec {
            name: "n".into(),
            image: "i".into(),
            entrypoint: None,
            args: vec!["--acp".into()],
            env: [
                ("B".to_owned(), "2".to_owned()),
                ("A".to_owned(), "1=1".to_owned()),
            ]
            .into(),
            labels: [("k".to_owned(), "v".to_owned())].into(),
            working_dir: "/workspace".into(),
            mounts: vec![Mount {
                source: MountSource::Volume("state".into()),
                target: "/root/.state".into(),
                read_only: true,
            }],
            memory_bytes: 1 << 30,
            cpu_cores: 0.1,
            pids_limit: 100,
            network: Network::Named("lan".into()),
            user: None,
            cap_add: vec![],
            log_max_bytes: 0,
            log_max_files: 0,
        }
    }

    #[test]
    fn says_only_what_the_caller_said() {
        let config = config(&spec());
        assert!(
            config.get("Entrypoint").is_none(),
            "null would be one too, on some engines"
        );
        assert!(config.get("User").is_none());
        assert_eq!(config["Env"], json!(["A=1=1", "B=2"]));
    }

    #[test]
    fn limits_are_in_the_engines_units() {
        let host = host_config(&spec());
        assert_eq!(host["NanoCpus"], 100_000_000);
        assert_eq!(host["Memory"], host["MemorySwap"]);
        assert_eq!(
            host["LogConfig"]["Config"],
            json!({ "max-size": "1", "max-file": "1" })
        );
        assert_eq!(host["NetworkMode"], "lan");
        assert_eq!(
            host["Mounts"],
            json!([{ "Type": "volume", "Source": "state", "Target": "/root/.state", "ReadOnly": true }])
        );
    }
}
