//! Terminals of sessions that end before the instance does.

use reqwest::Method;
use serde_json::json;

use super::start;

#[tokio::test]
async fn the_terminals_of_a_session_end_with_it() {
    let stack = start("").await;
    let id = stack
        .launch(json!({"agent_type": "boxed", "permission_policy": "ask"}))
        .await;
    let fork = async || {
        let path = format!("/agents/{id}/fork");
        let branch = stack.post(&path, &json!({})).await.expect(201);
        branch["session_id"].as_str().unwrap().to_owned()
    };
    let branches = [fork().await, fork().await];
    let own = stack.instance(&id).await["session_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let create = |session: &str| {
        let params = json!({"sessionId": session, "command": "sleep", "args": ["300"]});
        format!("/request terminal/create {params}")
    };
    let script = [&own, &branches[0], &branches[1]].map(|session| create(session));
    let turn = stack
        .prompt(&id, &format!("{}\n/permission", script.join("\n")))
        .await;
    let [permission] = &crate::asked::pending(&stack, "permissions", &id, 1).await[..] else {
        unreachable!()
    };
    let released = async || {
        let events = stack.events(&id).await;
        let releases = events
            .iter()
            .filter(|e| e["kind"] == "terminal" && e["data"]["operation"] == "release");
        releases
            .map(|e| (e["data"]["terminal_id"].clone(), e["data"]["by"].clone()))
            .collect::<Vec<_>>()
    };
    let path = |branch: &str| format!("/agents/{id}/sessions/{branch}");
    let close = format!("{}/close", path(&branches[0]));
    stack.post(&close, &json!({})).await.expect(200);
    assert_eq!(released().await.len(), 1);
    assert_eq!(released().await[0].1, "session_end");
    stack
        .call(Method::DELETE, &path(&branches[1]), None)
        .await
        .expect(200);
    assert_eq!(released().await.len(), 2);
    assert_eq!(released().await[1].1, "session_end");
    let allow = json!({"option_id": "allow-once"});
    stack
        .post(&crate::asked::path_of("permissions", permission), &allow)
        .await
        .expect(200);
    crate::asked::turn_ended(&stack, &id, &turn).await;
    let all = released().await;
    assert_eq!((all.len(), &all[2].1), (3, &json!("turn_end")), "{all:#?}");
    stack.settle().await;
}
