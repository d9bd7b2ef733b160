//! MCP servers of types, launches, resumes and forks: which reach the agent, and who is told of those that do not.

use serde_json::{Value, json};

use crate::support::Stack;

const TYPE: &str = "id = 'tooled'\nname = 'x'\nimage = 'kandev/mock-agent:latest'\n\
    [env]\nMOCK_INPUT_COPY = '/workspace/input'\n\
    [[mounts]]\nsource = '{workspace}'\ntarget = '/workspace'\n\
    [[mounts]]\nsource = '{session_store}'\ntarget = '/sessions'\n\
    [[mcp_servers]]\nname = 'files'\ncommand = 'mcp-files'\nargs = ['--root', '/workspace']\nenv = { LEVEL = 'info' }\n\
    [[mcp_servers]]\nname = 'web'\ntype = 'http'\nurl = 'https://tools.example/mcp'\n\
    headers = [{ name = 'X-Key', value = 'k' }]\n\
    [[mcp_servers]]\nname = 'old'\ntype = 'sse'\nurl = 'https://old.example/sse'\n";

fn files() -> Value {
    json!({
        "name": "files", "command": "mcp-files", "args": ["--root", "/workspace"], "env": [{"name": "LEVEL", "value": "info"}],
    })
}

fn web(url: &str) -> Value {
    json!({"type": "http", "name": "web", "url": url, "headers": [{"name": "X-Key", "value": "k"}]})
}

fn own() -> Value {
    json!({"name": "own", "command": "/bin/own", "args": [], "env": []})
}

async fn tooled() -> Stack {
    Stack::with_types(&[], &[("tooled", TYPE)]).await
}

/// What is told of servers: name, type and status.
fn told(servers: &Value) -> Vec<String> {
    let servers = servers.as_array().unwrap_or_else(|| panic!("{servers:#}"));
    let text = |server: &Value, key: &str| server[key].as_str().unwrap().to_owned();
    let line = |s: &Value| format!("{} {} {}", text(s, "name"), text(s, "type"), text(s, "status"));
    servers.iter().map(line).collect()
}

async fn last_session_event(stack: &Stack, id: &str) -> Value {
    let events = stack.events(id).await;
    let last = events.iter().rfind(|e| e["kind"] == "session").unwrap();
    last["data"].clone()
}

async fn stop(stack: &Stack, id: &str) {
    stack
        .post(&format!("/agents/{id}/stop"), &json!({"force": true}))
        .await
        .expect(200);
}

#[tokio::test]
async fn servers_reach_the_agent_as_far_as_it_takes_them() {
    let stack = tooled().await;
    let launch = json!({
        "agent_type": "tooled", "env": {"MOCK_WITHOUT": "sse"},
        "mcp_servers": [{"name": "web", "type": "http", "url": "https://mine.example", "headers": {"X-Key": "k"}}, own()],
    });
    let launched = stack.try_launch(launch).await.expect(201);
    let id = launched["id"].as_str().unwrap();
    let new = stack.sent_to("session/new");
    assert_eq!(
        new[0]["mcpServers"],
        json!([files(), web("https://mine.example"), own()]),
        "the launch's stands for the type's of its name"
    );
    // Told in the answer, in the event, of the session, and in the log.
    let expected = [
        "files stdio handed",
        "old sse skipped",
        "web http handed",
        "own stdio handed",
    ];
    assert_eq!(told(&launched["mcp_servers"]), expected);
    let event = last_session_event(&stack, id).await;
    assert_eq!(event["mcp_servers"], launched["mcp_servers"]);
    let reason = event["mcp_servers"][1]["reason"].as_str().unwrap();
    assert!(reason.contains("sse"), "{reason}");
    let session = stack.get(&format!("/agents/{id}/session")).await.expect(200);
    assert_eq!(session["mcp_servers"], launched["mcp_servers"]);
    let logs = stack.logs(id, "system").await;
    let skipped: Vec<_> = logs.iter().filter(|line| line.contains("MCP server")).collect();
    assert!(skipped.len() == 1 && skipped[0].contains("'old'"), "{skipped:?}");
    // The catalogue shows what there is, and nothing that may be secret.
    let types = stack.get("/agents/types/tooled").await.expect(200);
    let shown = &types["mcp_servers"];
    assert_eq!(
        (&shown[0]["name"], &shown[1]["url"]),
        (&json!("files"), &json!("https://tools.example/mcp"))
    );
    assert_eq!(
        (&shown[0]["env"][0]["value"], &shown[1]["headers"][0]["value"]),
        (&json!("(secret)"), &json!("(secret)"))
    );
    stack.settle().await;
}

#[tokio::test]
async fn a_resume_hands_them_over_again_or_others() {
    let stack = tooled().await;
    let launch = |more: Value| json!({"agent_type": "tooled", "mcp_servers": [own()], "env": more});
    let id = stack.launch(launch(json!({}))).await;
    stack.turn(&id, "/say remember").await;
    let session = stack.instance(&id).await["session_id"].clone();
    stop(&stack, &id).await;
    let resume = format!("/sessions/{}/resume", session.as_str().unwrap());
    let all = json!([files(), web("https://tools.example/mcp"), {"type": "sse", "name": "old", "url": "https://old.example/sse", "headers": []}, own()]);
    let again = stack.post(&resume, &json!({"wait": "ready"})).await.expect(201);
    assert_eq!(stack.sent_to("session/resume")[0]["mcpServers"], all);
    stop(&stack, again["id"].as_str().unwrap()).await;
    // By a load; and without the http ones, which the agent of this launch does not take.
    let body = json!({"wait": "ready", "env": {"MOCK_WITHOUT": "resume,http,sse"}});
    let loaded = stack.post(&resume, &body).await.expect(201);
    assert_eq!(
        stack.sent_to("session/load")[0]["mcpServers"],
        json!([files(), own()])
    );
    let id = loaded["id"].as_str().unwrap().to_owned();
    let skipped = [
        "files stdio handed",
        "web http skipped",
        "old sse skipped",
        "own stdio handed",
    ];
    assert_eq!(told(&loaded["mcp_servers"]), skipped);
    assert_eq!(
        told(&last_session_event(&stack, &id).await["mcp_servers"]),
        skipped
    );
    stop(&stack, &id).await;
    let other = json!({"name": "other", "command": "/bin/other", "args": [], "env": []});
    let body = json!({"wait": "ready", "env": {"MOCK_WITHOUT": "http,sse"}, "mcp_servers": [other]});
    let resumed = stack
        .post(&format!("/agents/{id}/resume"), &body)
        .await
        .expect(201);
    assert_eq!(
        stack.sent_to("session/resume").last().unwrap()["mcpServers"],
        json!([files(), other])
    );
    // From now on these are the launch's.
    let id = resumed["id"].as_str().unwrap();
    stop(&stack, id).await;
    stack.resume(id).await;
    assert_eq!(
        stack.sent_to("session/resume").last().unwrap()["mcpServers"],
        json!([files(), other])
    );
    let bad = stack
        .post(&resume, &json!({"mcp_servers": [{"name": "x"}]}))
        .await;
    let refused = bad.refused(400, "validation_error");
    assert_eq!(refused["details"]["field"], "mcp_servers[0]");
    stack.settle().await;
}

#[tokio::test]
async fn a_branch_is_given_the_same_or_its_own_also_after_a_restart() {
    let mut stack = tooled().await;
    let launch = json!({"agent_type": "tooled", "mcp_servers": [own()], "env": {"MOCK_WITHOUT": "http,sse"}});
    let id = stack.launch(launch).await;
    stack.turn(&id, "/say one").await;
    let fork = format!("/agents/{id}/fork");
    stack.kill().await;
    stack.boot().await;
    // It can be asked once it is taken up.
    stack.turn(&id, "/say two").await;
    let branch = stack.post(&fork, &json!({})).await.expect(201);
    let told_of = [
        "files stdio handed",
        "web http skipped",
        "old sse skipped",
        "own stdio handed",
    ];
    assert_eq!(told(&branch["mcp_servers"]), told_of);
    let given = json!([{"name": "branch", "command": "/bin/branch"}, {"name": "far", "type": "sse", "url": "http://far"}]);
    let branch = stack
        .post(&fork, &json!({"mcp_servers": given}))
        .await
        .expect(201);
    assert_eq!(
        told(&branch["mcp_servers"]),
        ["branch stdio handed", "far sse skipped"]
    );
    assert_eq!(
        last_session_event(&stack, &id).await["mcp_servers"],
        branch["mcp_servers"]
    );
    let key = branch["session_id"].as_str().unwrap();
    let session = stack.get(&format!("/sessions/{key}")).await.expect(200);
    assert_eq!(session["mcp_servers"], branch["mcp_servers"]);
    let handed: Vec<Value> = stack
        .sent_to("session/fork")
        .iter()
        .map(|p| p["mcpServers"].clone())
        .collect();
    assert_eq!(
        handed,
        [
            json!([files(), own()]),
            json!([{"name": "branch", "command": "/bin/branch", "args": [], "env": []}])
        ]
    );
    let twice = json!({"mcp_servers": [own(), own()]});
    let refused = stack.post(&fork, &twice).await.refused(400, "validation_error");
    assert_eq!(refused["details"]["field"], "mcp_servers");
    stack.settle().await;
}

#[tokio::test]
async fn an_agent_without_mcp_servers_is_given_none() {
    let stack = tooled().await;
    let launch = json!({"agent_type": "tooled", "env": {"MOCK_DIALECT": "kandev"}, "mcp_servers": [own()]});
    let launched = stack.try_launch(launch).await.expect(201);
    let id = launched["id"].as_str().unwrap();
    assert_eq!(stack.sent_to("session/new"), [json!({})]);
    let all_skipped = [
        "files stdio skipped",
        "web http skipped",
        "old sse skipped",
        "own stdio skipped",
    ];
    assert_eq!(told(&launched["mcp_servers"]), all_skipped);
    let logs = stack.logs(id, "system").await;
    assert_eq!(logs.iter().filter(|line| line.contains("MCP server")).count(), 4);
    stack.settle().await;
}
