//! What the sections' tests leave out: refusals, and files and requests that are not as they should be.

use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use super::{assert_typed, done, post, rpc, session, session_until, start, start_with, updates};
use crate::asked::{pending, turn_ended};

const RELEASE: &str = "session/subagent_release_wait";

#[tokio::test]
async fn what_does_not_wait_is_not_released_and_a_release_is_for_one_turn() {
    let (stack, id) = start().await;
    assert_eq!(
        done(&stack, &id, RELEASE, json!({})).await,
        json!({"released": false})
    );
    // Released once, the turn's later boundaries do not wait; the next turn's do.
    let turn = stack
        .prompt(
            &id,
            "/subagent ms=60000 slow\n/boundary\n/say one \n/boundary\n/say two",
        )
        .await;
    session_until(&stack, &id, |s| s["subagent_turn"]["state"] == "waiting").await;
    assert_eq!(
        done(&stack, &id, RELEASE, json!({})).await,
        json!({"released": true})
    );
    assert_eq!(turn_ended(&stack, &id, &turn).await["text"], "one two");
    let turn = stack.prompt(&id, "/boundary\n/say three").await;
    session_until(&stack, &id, |s| s["subagent_turn"]["state"] == "waiting").await;
    let task = json!({"taskId": "task-1"});
    done(&stack, &id, "session/subagent_cancel", task).await;
    assert_eq!(
        turn_ended(&stack, &id, &turn).await["text"],
        "subagent task-1: cancelled\nthree"
    );
    assert_eq!(
        done(&stack, &id, RELEASE, json!({})).await,
        json!({"released": false})
    );
    stack.settle().await;
}

#[tokio::test]
async fn more_subagents_than_may_run_at_once_fail_their_call() {
    let (stack, id) = start().await;
    let settings = json!({"maxConcurrent": 1, "allowParentToContinue": true});
    let script =
        format!("/subagent-settings {settings}\n/subagent ms=60000 first\n/subagent second\n/say on");
    assert_eq!(stack.turn(&id, &script).await["text"], "on");
    let calls = updates(&stack, &id, &["tool_call_update"]).await;
    let ends: Vec<_> = calls
        .iter()
        .map(|u| (&u["status"], &u["content"][0]["content"]["text"]))
        .collect();
    assert_eq!(
        ends,
        [
            (&json!("completed"), &json!("started task-1")),
            (&json!("failed"), &json!("1 subagents run already"))
        ]
    );
    let known = session_until(&stack, &id, |s| {
        s["subagent_settings"]["settings"]["maxConcurrent"] == 1
    })
    .await;
    assert_eq!(known["subagents"].as_array().map(Vec::len), Some(1), "{known:#}");
    // There is room again when it has ended.
    let task = json!({"taskId": "task-1"});
    done(&stack, &id, "session/subagent_cancel", task).await;
    session_until(&stack, &id, |s| {
        s["subagents"][0]["task"]["status"] == "cancelled"
    })
    .await;
    stack.turn(&id, "/subagent ms=60000 third").await;
    let calls = updates(&stack, &id, &["tool_call_update"]).await;
    assert_eq!(calls.last().unwrap()["status"], "completed");
    stack.settle().await;
}

/// The code for what the agent could not read.
#[tokio::test]
async fn a_parse_error_is_the_turns_as_it_came() {
    let (stack, id) = start().await;
    let error = json!({
        "code": -32700, "message": "Parse error", "data": {"details": "unexpected end", "reason": "parse_error"},
    });
    let turn = stack.turn(&id, &format!("/error-data {error}")).await;
    assert_eq!(
        (&turn["status"], &turn["error"]["details"]),
        (&json!("failed"), &error)
    );
    assert_typed(&turn["error"]["details"], -32700, "parse_error");
    // Told of nothing in particular, it settles nothing.
    let turn = stack
        .turn(
            &id,
            r#"/raw {"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error","data":{"details":"x","reason":"parse_error"}}}
/say on"#,
        )
        .await;
    assert_eq!(
        (&turn["status"], &turn["text"]),
        (&json!("completed"), &json!("on"))
    );
    stack.settle().await;
}

/// The section's example: an edit with its diff and places.
#[tokio::test]
async fn the_call_that_a_permission_is_asked_for_is_shown_as_it_came() {
    let (stack, id) = start_with(json!({"permission_policy": "ask"})).await;
    let call = json!({
        "toolCallId": "replace-1", "title": "src/main.c: old => new", "kind": "edit", "status": "pending",
        "locations": [{"path": "/workspace/src/main.c", "line": 3}],
        "content": [{"type": "diff", "path": "/workspace/src/main.c", "oldText": "old\n", "newText": "new\n"}],
    });
    let params = json!({
        "toolCall": call,
        "options": [
            {"optionId": "proceed_always", "name": "Allow All Edits", "kind": "allow_always"},
            {"optionId": "proceed_once", "name": "Allow", "kind": "allow_once"},
            {"optionId": "cancel", "name": "Reject", "kind": "reject_once"},
        ],
    });
    let turn = stack
        .prompt(
            &id,
            &format!("/later session/request_permission {params}\n/answers"),
        )
        .await;
    let asked = pending(&stack, "permissions", &id, 1).await.remove(0);
    assert_eq!(
        (&asked["tool_call"], &asked["options"]),
        (&call, &params["options"])
    );
    let path = format!("permissions/{}", asked["id"].as_str().unwrap());
    post(&stack, &id, &path, json!({"option_id": "proceed_always"}))
        .await
        .expect(200);
    let ended = turn_ended(&stack, &id, &turn).await;
    let said = ended["text"].as_str().unwrap().strip_prefix("answer: ").unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(said).unwrap(),
        json!({"outcome": {"outcome": "selected", "optionId": "proceed_always"}})
    );
    stack.settle().await;
}

#[tokio::test]
async fn roles_of_files_that_are_not_as_they_should_be_are_told_and_can_be_mended() {
    let (stack, id) = start().await;
    let call = async |what: &str, params: Value| {
        rpc(&stack, &id, &format!("session/subagent_definition{what}"), params).await
    };
    let own = stack.workspace().join(".koda/agents");
    let everywhere = stack.workspace().join("home/agents");
    for folder in [&own, &everywhere] {
        std::fs::create_dir_all(folder).unwrap();
    }
    let role = |name: &str, description: &str| {
        format!("---\nname: {name}\ndescription: {description}\n---\nDo it.\n")
    };
    let write = |path: std::path::PathBuf, text: &str| std::fs::write(path, text).unwrap();
    write(everywhere.join("both.md"), &role("both", "global"));
    write(own.join("both.md"), &role("both", "workspace"));
    write(everywhere.join("global.md"), &role("global", "global"));
    // A broken file of the workspace's keeps its name from the global one.
    write(everywhere.join("kept.md"), &role("kept", "global"));
    write(own.join("kept.md"), "no head");
    write(own.join("field.md"), &role("field", "d\ncolour: red"));
    write(own.join("large.md"), &role("large", &"x".repeat(64 << 10)));
    write(own.join("other.md"), &role("another", "of another name"));
    symlink("both.md", own.join("linked.md")).unwrap();
    std::fs::create_dir(own.join("nested.md")).unwrap();
    let known = session_until(&stack, &id, |s| {
        let errors = s["subagent_definitions"]["errors"].as_array();
        errors.is_some_and(|errors| errors.len() == 6)
    })
    .await;
    let told = &known["subagent_definitions"];
    let of = |list: &str, what: &str| -> Vec<(String, String)> {
        let text = |one: &Value, name: &str| one[name].as_str().unwrap().to_owned();
        let all = told[list].as_array().unwrap().iter();
        let mut all: Vec<_> = all.map(|one| (text(one, "name"), text(one, what))).collect();
        all.sort();
        all
    };
    let pairs = |all: &[(&str, &str)]| -> Vec<(String, String)> {
        let owned = all.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned()));
        owned.collect()
    };
    assert_eq!(
        of("agents", "description"),
        pairs(&[("both", "workspace"), ("global", "global")])
    );
    let file = "a role is a plain file, no link and no folder";
    assert_eq!(
        of("errors", "error"),
        pairs(&[
            ("field", "unknown field 'colour'"),
            ("kept", "there is no head between two lines of '---'"),
            ("large", "a role has at most 65536 bytes"),
            ("linked", file),
            ("nested", file),
            (
                "other",
                "name must be the file's: lower-case letters, digits and hyphens, at most 64"
            ),
        ])
    );
    // What is broken cannot be read, and can be written anew.
    let uri = "file:///workspace/.koda/agents/kept.md";
    let broken = call("_read", json!({"name": "kept", "sourceUri": uri})).await;
    assert_typed(&broken["error"], -32602, "role_invalid");
    let mended = json!({"name": "kept", "sourceUri": uri, "description": "mended", "prompt": "Do it."});
    let written = call("_write", mended).await;
    assert!(written["error"].is_null(), "{written:#}");
    let read = call("_read", json!({"name": "kept", "sourceUri": uri})).await;
    assert_eq!(read["result"]["description"], "mended", "{read:#}");
    let known = session(&stack, &id).await;
    let agents = known["subagent_definitions"]["agents"].as_array().unwrap();
    assert!(
        agents.iter().any(|role| role["description"] == "mended"),
        "{known:#}"
    );
    stack.settle().await;
}
