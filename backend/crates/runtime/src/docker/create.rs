//! What a container is made of.
//!
//! Source: `POST /containers/create` of the Docker Engine API reference.

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount as EngineMount, MountType, RestartPolicy,
    RestartPolicyNameEnum,
};
use bollard::query_parameters::CreateContainerOptionsBuilder;

use super::client::{Client, Subject};
use crate::error::Result;
use crate::helper::DIRECTORY;
use crate::types::{ContainerId, ContainerSpec, Mount, MountSource, Network};

pub(super) async fn create(client: &Client, spec: &ContainerSpec) -> Result<ContainerId> {
    let options = CreateContainerOptionsBuilder::default().name(&spec.name).build();
    let (options, config) = (&options, &config(spec));
    let call = client.call("create", Subject::Image(&spec.image));
    let created = client
        .make(call, |engine| async move {
            engine
                .docker
                .create_container(Some(options.clone()), config.clone())
                .await
        })
        .await?;
    for warning in created.warnings {
        tracing::warn!(container = spec.name, %warning, "the engine warns of a container it made");
    }
    Ok(ContainerId(created.id))
}

fn config(spec: &ContainerSpec) -> ContainerCreateBody {
    ContainerCreateBody {
        image: Some(spec.image.clone()),
        entrypoint: spec.entrypoint.clone(),
        cmd: Some(spec.args.clone()),
        env: Some(environment(&spec.env)),
        labels: Some(spec.labels.clone().into_iter().collect()),
        working_dir: Some(spec.working_dir.clone()),
        user: spec.user.clone(),
        tty: Some(false),
        // stdin stays open when the backend that attached to it dies, for the next one.
        open_stdin: Some(true),
        stdin_once: Some(false),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        // An image may ask for another signal, and a graceful stop is SIGTERM here.
        stop_signal: Some("SIGTERM".to_owned()),
        host_config: Some(host_config(spec)),
        ..ContainerCreateBody::default()
    }
}

fn host_config(spec: &ContainerSpec) -> HostConfig {
    let memory = i64::try_from(spec.memory_bytes).unwrap_or(i64::MAX);
    let network = match &spec.network {
        Network::Bridge => "bridge",
        Network::None => "none",
        Network::Named(name) => name,
    };
    let log_options = [
        ("max-size", spec.log_max_bytes.max(1).to_string()),
        ("max-file", spec.log_max_files.max(1).to_string()),
    ];
    HostConfig {
        readonly_rootfs: Some(spec.read_only_root),
        mounts: Some(mounts(spec)),
        memory: Some(memory),
        // Memory and swap together: no swap.
        memory_swap: Some(memory),
        nano_cpus: Some((spec.cpu_cores * 1e9).round() as i64),
        pids_limit: Some(i64::try_from(spec.pids_limit).unwrap_or(i64::MAX)),
        // A first process that reaps, since agents and what they start do not.
        init: Some(true),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: Some(spec.cap_add.clone()),
        ipc_mode: Some("private".to_owned()),
        network_mode: Some(network.to_owned()),
        // The one driver whose log gives back what was written: `local` of Docker 20.10 drops newlines.
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".to_owned()),
            config: Some(log_options.map(|(name, value)| (name.to_owned(), value)).into()),
        }),
        // Removal by the engine would race the reading of the exit status.
        auto_remove: Some(false),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        ..HostConfig::default()
    }
}

fn mounts(spec: &ContainerSpec) -> Vec<EngineMount> {
    // Nameless, so that it goes with its container.
    let helper = EngineMount {
        typ: Some(MountType::VOLUME),
        target: Some(DIRECTORY.to_owned()),
        ..EngineMount::default()
    };
    let mounts = spec.mounts.iter().map(mount);
    mounts.chain(spec.read_only_root.then_some(helper)).collect()
}

/// A host path must exist: unlike `Binds`, `Mounts` does not make an empty directory, owned by root, in its place.
fn mount(mount: &Mount) -> EngineMount {
    let (kind, source) = match &mount.source {
        MountSource::Host(path) => (MountType::BIND, path),
        MountSource::Volume(name) => (MountType::VOLUME, name),
    };
    EngineMount {
        typ: Some(kind),
        source: Some(source.clone()),
        target: Some(mount.target.clone()),
        read_only: Some(mount.read_only),
        ..EngineMount::default()
    }
}

/// As the engine takes it.
pub(super) fn environment(env: &std::collections::BTreeMap<String, String>) -> Vec<String> {
    env.iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
            read_only_root: false,
            log_max_bytes: 0,
            log_max_files: 0,
        }
    }

    #[test]
    fn says_only_what_the_caller_said() {
        let config = serde_json::to_value(config(&spec())).unwrap();
        assert!(
            config.get("Entrypoint").is_none(),
            "null would be one too, on some engines"
        );
        assert!(config.get("User").is_none());
        assert_eq!(config["Env"], json!(["A=1=1", "B=2"]));
    }

    #[test]
    fn limits_are_in_the_engines_units() {
        let host = serde_json::to_value(host_config(&spec())).unwrap();
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
