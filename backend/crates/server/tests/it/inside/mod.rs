//! What agents ask to be done in their container: files and terminals.

mod at_once;
mod bounds;
mod endless;
mod files;
mod limits;
mod restarts;
mod sessions;
mod shown;
mod terminals;
mod withdrawn;

use serde_json::{Value, json};

use crate::protocol::of_kind;
use crate::support::{Stack, docker};

/// The mock agent with a few programs beside it, each of which is the machine's busybox. `more` goes before the mounts.
fn boxed(id: &str, more: &str) -> String {
    let mut entry = format!(
        "id = '{id}'\nname = 'Boxed'\nimage = 'kandev/mock-agent:latest'\nnetwork = 'none'\nmemory_mb = 256\n{more}\n\
         [[mounts]]\nsource = '{{workspace}}'\ntarget = '/workspace'\n"
    );
    for program in [
        "sh", "cat", "yes", "sleep", "echo", "env", "pwd", "printf", "kill", "ps",
    ] {
        let mount =
            format!("[[mounts]]\nsource = '/bin/busybox'\ntarget = '/bin/{program}'\nread_only = true\n");
        entry.push_str(&mount);
    }
    entry
}

async fn start(more: &str) -> Stack {
    start_with(&[], more).await
}

async fn start_with(environment: &[(&str, &str)], more: &str) -> Stack {
    Stack::with_types(environment, &[("boxed", &boxed("boxed", more))]).await
}

async fn launch(stack: &Stack) -> String {
    stack.launch(json!({"agent_type": "boxed"})).await
}

/// Runs a script: what it said, line by line.
async fn said(stack: &Stack, id: &str, script: &str) -> Vec<String> {
    let turn = stack.turn(id, script).await;
    assert_eq!(turn["stop_reason"], "end_turn", "{turn:#}");
    lines(&turn)
}

/// Prompts, and waits until the turn has said `text`: the turn's path.
async fn says(stack: &Stack, id: &str, script: &str, text: &str) -> String {
    let turn = stack.prompt(id, script).await;
    let path = format!("/agents/{id}/turns/{turn}");
    stack
        .until(&path, |t| {
            t["text"].as_str().is_some_and(|said| said.contains(text))
        })
        .await;
    path
}

fn lines(turn: &Value) -> Vec<String> {
    let text = turn["text"].as_str().unwrap();
    text.lines().map(str::to_owned).collect()
}

/// The data of all events of a kind.
async fn told(stack: &Stack, id: &str, kind: &str) -> Vec<Value> {
    let events = of_kind(stack, id, kind).await;
    events.iter().map(|event| event["data"].clone()).collect()
}

/// The command lines of all processes of an instance's container.
async fn processes(stack: &Stack, id: &str) -> Vec<String> {
    let container = stack.instance(id).await["container_id"]
        .as_str()
        .unwrap()
        .to_owned();
    docker(&["top", &container, "-eo", "pid,args"]).split_off(1)
}

fn running(processes: &[String], program: &str) -> usize {
    processes.iter().filter(|args| args.contains(program)).count()
}
