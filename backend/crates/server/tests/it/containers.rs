//! What a container is to its agent: a user who may or may not enter the workspace, and a parent for its orphans.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use crate::support::{Stack, docker};

const OTHERS: &str = "id = 'other'\nname = 'Other'\nimage = 'kandev/mock-agent:latest'\nnetwork = 'none'\nuser = '1234'\n\
    [[mounts]]\nsource = '{workspace}'\ntarget = '/workspace'\n";
/// With the entrypoint that the image has, given again.
const PARENT: &str = "id = 'parent'\nname = 'Parent'\nimage = 'kandev/mock-agent:latest'\nnetwork = 'none'\n\
    command = ['/mock-agent']\nargs = ['--dialect', 'acp']\npids_limit = 2000\n\
    [[mounts]]\nsource = '{workspace}'\ntarget = '/workspace'\n";

/// Who may do what in the workspace.
pub(crate) fn may(stack: &Stack, mode: u32) {
    std::fs::set_permissions(stack.workspace(), std::fs::Permissions::from_mode(mode)).unwrap();
}

/// User 1234 of the type `other` is shut out of the workspace: the launch says so and leaves nothing.
pub(crate) async fn is_shut_out(stack: &Stack) {
    may(stack, 0o700);
    let answer = stack.try_launch(json!({"agent_type": "other"})).await.expect(201);
    assert_eq!(
        (&answer["status"], &answer["error"]["code"]),
        (&json!("failed"), &json!("container_create_failed")),
        "{answer:#}"
    );
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("with mode 0700, and the agent's user 1234 may not enter it"),
        "{message}"
    );
    assert!(stack.containers().is_empty());
}

/// CASE 33.
#[tokio::test]
async fn a_workspace_that_the_agent_may_not_enter_is_an_error_of_the_launch() {
    let stack = Stack::with_types(&[], &[("other", OTHERS)]).await;
    is_shut_out(&stack).await;
    may(&stack, 0o755);
    let id = stack.launch(json!({"agent_type": "other"})).await;
    assert!(
        stack.turn(&id, "/whoami").await["text"]
            .as_str()
            .unwrap()
            .contains("uid=1234")
    );
    stack.settle().await;
}

/// CASE 32.
#[tokio::test]
async fn orphans_are_neither_zombies_nor_left_over() {
    let stack = Stack::with_types(&[], &[("parent", PARENT)]).await;
    let id = stack.launch(json!({"agent_type": "parent"})).await;
    let container = stack.instance(&id).await["container_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let states = || docker(&["top", &container, "-eo", "pid,stat,args"]).split_off(1);
    let said = stack.turn(&id, "/spawn-orphans 500 1\n/sleep 300").await;
    assert_eq!(said["text"], "spawn-orphans: 500\n");
    // The script slept longer than they do, but a loaded machine may have started them late.
    let deadline = std::time::Instant::now() + crate::support::LIMIT;
    while states().len() > 2 {
        assert!(std::time::Instant::now() < deadline, "{:#?}", states());
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    // The engine shows no zombies.
    let first = docker(&["inspect", "-f", "{{.State.Pid}}", &container]).remove(0);
    while zombies_of(&first) > 0 {
        assert!(std::time::Instant::now() < deadline, "zombies are left");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }

    // Told apart from those of any other test by their time.
    let millis = 3_600_000 + std::process::id();
    let said = stack.turn(&id, &format!("/spawn-orphans 500 {millis}")).await;
    assert_eq!(said["text"], "spawn-orphans: 500\n");
    let time = format!("\0{millis}\0");
    assert_eq!(processes(&time), 500);
    stack.stop(&id).await;
    assert_eq!(processes(&time), 0);
    stack.settle().await;
}

/// How many children of this process have ended, and are not waited for.
fn zombies_of(parent: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = all.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    let is_one = |stat: &String| {
        let (_, rest) = stat.rsplit_once(") ").unwrap_or_default();
        let mut fields = rest.split(' ');
        fields.next() == Some("Z") && fields.next() == Some(parent)
    };
    stats.filter(is_one).count()
}

/// How many processes of this machine, containers included, have this among their arguments.
fn processes(argument: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .filter(|line| String::from_utf8_lossy(line).contains(argument))
        .count()
}
