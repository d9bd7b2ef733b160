use std::collections::BTreeMap;

use kandev_runtime::{ContainerRuntime, ContainerSpec, Network};
use serde_json::json;

use crate::raw;
use crate::world::{World, collect, exited};

async fn process_status(world: &World, spec: &ContainerSpec) -> BTreeMap<String, String> {
    let running = world.run(spec).await.unwrap();
    let (out, _) = collect(running.attachment.output).await;
    String::from_utf8(out)
        .unwrap()
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_privileges_but_those_asked_for() {
    let world = World::new();
    let mut spec = world.spec("exec cat /proc/self/status");
    let status = process_status(&world, &spec).await;
    assert_eq!(status["NoNewPrivs"], "1");
    for set in ["CapEff", "CapPrm", "CapBnd", "CapInh"] {
        assert_eq!(status[set], "0000000000000000", "{set}");
    }
    spec = world.spec("exec cat /proc/self/status");
    spec.cap_add = vec!["CHOWN".to_owned()];
    let status = process_status(&world, &spec).await;
    assert_eq!(status["CapEff"], "0000000000000001");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_reach_the_engine() {
    let world = World::new();
    let mut spec = world.spec("true");
    spec.cpu_cores = 0.5;
    spec.pids_limit = 33;
    spec.memory_bytes = 96 << 20;
    spec.user = Some("5:6".to_owned());
    spec.network = Network::Bridge;
    let id = world.runtime.create(&spec).await.unwrap();
    let inspected = raw::inspect(&id.0);
    let host = &inspected["HostConfig"];
    assert_eq!(host["Memory"], 96 << 20);
    assert_eq!(host["MemorySwap"], 96 << 20, "no swap");
    assert_eq!(host["NanoCpus"], 500_000_000);
    assert_eq!(host["PidsLimit"], 33);
    assert_eq!(host["Init"], true);
    assert_eq!(host["AutoRemove"], false);
    assert_eq!(host["Privileged"], false);
    assert_eq!(host["IpcMode"], "private");
    assert_eq!(host["NetworkMode"], "bridge");
    assert_eq!(host["RestartPolicy"]["Name"], "no");
    assert_eq!(host["CapDrop"], json!(["ALL"]));
    assert_eq!(host["SecurityOpt"], json!(["no-new-privileges"]));
    let log =
        json!({ "Type": "json-file", "Config": { "max-size": (8 << 20).to_string(), "max-file": "2" } });
    assert_eq!(host["LogConfig"], log);
    let config = &inspected["Config"];
    assert_eq!(config["Tty"], false);
    assert_eq!(
        (&config["OpenStdin"], &config["StdinOnce"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(config["User"], "5:6");
    assert_eq!(config["WorkingDir"], "/workspace");
    assert_eq!(config["Entrypoint"], json!(["/bin/sh", "-c"]));
    assert_eq!(config["Cmd"], json!(["true"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold() {
    let world = World::new();
    let mut spec = world.spec("for i in $(seq 50); do sleep 5 & done; echo all; exit 0");
    spec.pids_limit = 20;
    let running = world.run(&spec).await.unwrap();
    let (out, err) = collect(running.attachment.output).await;
    assert_eq!(out, b"", "no fifty processes");
    assert!(
        String::from_utf8_lossy(&err).contains("fork"),
        "{}",
        String::from_utf8_lossy(&err)
    );
}

/// Children that outlive their parents become the first process's, which must reap them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_zombies() {
    let world = World::new();
    let running = world
        .run_script(
            "for i in $(seq 100); do (sleep 0.01 &) ; done; sleep 1; \
             cat /proc/[0-9]*/stat | grep -c ') Z '; exit 0",
        )
        .await;
    let (out, _) = collect(running.attachment.output).await;
    assert_eq!(out, b"0\n");
    assert_eq!(running.exit.await.unwrap(), exited(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_not_shown_by_debug() {
    let world = World::new();
    let mut spec = world.spec("echo $TOKEN");
    spec.env.insert("TOKEN".to_owned(), "canary-secret".to_owned());
    assert!(!format!("{spec:?}").contains("canary"));
    let running = world.run(&spec).await.unwrap();
    assert_eq!(collect(running.attachment.output).await.0, b"canary-secret\n");
}
