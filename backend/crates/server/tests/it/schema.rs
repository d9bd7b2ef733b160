//! The API's document says what is so: bodies that are taken fit it, and so does what is answered.

use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Stack};

/// The API's own document.
struct Document(Value);

impl Document {
    async fn of(stack: &Stack) -> Self {
        Self(stack.get("/api/v1/openapi.json").await.expect(200))
    }

    /// What does not fit; nothing if all does.
    fn misfits(&self, schema: &Value, value: &Value) -> Vec<String> {
        let whole = json!({"allOf": [schema], "components": self.0["components"]});
        let validator = jsonschema::validator_for(&whole).unwrap();
        let told = |e: jsonschema::ValidationError<'_>| format!("{}: {e}", e.instance_path());
        validator.iter_errors(value).map(told).collect()
    }

    /// What the document says of a route's body or answer.
    fn schema(&self, method: &Method, route: &str, rest: &[&str]) -> &Value {
        let operation = &self.0["paths"][format!("/api/v1{route}")][method.as_str().to_lowercase()];
        let content = rest.iter().fold(operation, |value, key| &value[*key]);
        let schema = &content["content"]["application/json"]["schema"];
        assert!(schema.is_object(), "{method} {route} {rest:?}");
        schema
    }

    /// Calls, and holds both body and answer against what is said of them: one that is taken fits, one that is refused for its
    /// form does not.
    #[track_caller]
    fn check(&self, method: &Method, route: &str, body: Option<&Value>, answer: &Answer) {
        let status = answer.status.as_u16();
        if let Some(body) = body {
            let misfits = self.misfits(self.schema(method, route, &["requestBody"]), body);
            let taken = status < 400;
            assert_eq!(
                misfits.is_empty(),
                taken,
                "{method} {route} {body:#}: {status} {misfits:#?}"
            );
        }
        let key = if status < 400 {
            status.to_string()
        } else {
            "default".to_owned()
        };
        let schema = self.schema(method, route, &["responses", &key]);
        let misfits = self.misfits(schema, &answer.body);
        assert!(
            misfits.is_empty(),
            "{method} {route}: {misfits:#?} in {:#}",
            answer.body
        );
    }
}

fn launch(workspace: &Path, more: &Value) -> Value {
    let mut body = json!({"agent_type": "mock-agent", "workspace_path": workspace});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

#[tokio::test]
async fn bodies_that_are_taken_fit_the_document_and_others_do_not() {
    let stack = Stack::start().await;
    let document = Document::of(&stack).await;
    let blocks = json!([{"type": "text", "text": "/say blocks"}]);
    let call = async |method: Method, route: &str, path: &str, body: Value| {
        let answer = stack.call(method.clone(), path, Some(&body)).await;
        document.check(&method, route, Some(&body), &answer);
        answer.body
    };
    let mut ids = Vec::new();
    for more in [
        json!({}),
        json!({"prompt": "/say text", "wait": "turn"}),
        json!({"prompt": blocks, "additional_directories": ["/a", {"path": "/b"}]}),
        json!({"prompt": null, "permission_policy": {"default": "ask", "read": "allow"}}),
        json!({"mcp_servers": [{"name": "x", "command": "/x", "env": {"A": "1"}}]}),
        json!({"mcp_servers": [{"name": "x", "command": "/x", "env": [{"name": "A", "value": "1"}]}]}),
    ] {
        let body = launch(&stack.workspace(), &more);
        let launched = call(Method::POST, "/agents/launch", "/agents/launch", body).await;
        ids.push(launched["id"].as_str().unwrap().to_owned());
    }
    for more in [
        json!({"prompt": {"type": "text", "text": "x"}}),
        json!({"prompt": 7}),
        json!({"prompt": []}),
        json!({"prompt": ""}),
        json!({"prompt": ["x"]}),
        json!({"additional_directories": [7]}),
        json!({"agent_type": null}),
        json!({"wait": {}}),
    ] {
        let body = launch(&stack.workspace(), &more);
        call(Method::POST, "/agents/launch", "/agents/launch", body).await;
    }
    let id = ids.remove(0);
    stack
        .until(&format!("/agents/{id}"), |i| i["status"] == "running")
        .await;
    let path = format!("/agents/{id}/prompt");
    for body in [
        json!({"message": "/say x", "wait": true}),
        json!({"prompt": "/say x", "prompt_meta": {"a": 1}}),
        json!({"prompt": blocks, "when_busy": "queue"}),
        json!({"prompt": {"type": "text", "text": "x"}}),
        json!({"prompt": 7}),
        json!({"message": "x", "when_busy": {}}),
    ] {
        call(Method::POST, "/agents/{id}/prompt", &path, body).await;
    }
    let rpc = format!("/agents/{id}/rpc");
    for params in [json!({"a": 1}), json!([1, 2])] {
        let body = json!({"method": "_mock/echo", "params": params});
        call(Method::POST, "/agents/{id}/rpc", &rpc, body).await;
    }
    let option = format!("/agents/{id}/config_options/model");
    let body = json!({"value": "mock-small"});
    call(
        Method::PUT,
        "/agents/{id}/config_options/{config_id}",
        &option,
        body,
    )
    .await;
    let task = stack.instance(&id).await["task_id"].as_str().unwrap().to_owned();
    for body in [
        json!({}),
        json!({"title": "x"}),
        json!({"title": null, "metadata": {"a": null}}),
        json!({"state": null}),
        json!({"metadata": null}),
        json!({"metadata": 7}),
        json!({"state": 7}),
    ] {
        call(Method::PATCH, "/tasks/{id}", &format!("/tasks/{task}"), body).await;
    }
    stack.stop(&id).await;
    for body in [json!({"prompt": 7}), json!({"prompt": blocks, "wait": "turn"})] {
        let path = format!("/agents/{id}/resume");
        let resumed = call(Method::POST, "/agents/{id}/resume", &path, body).await;
        if let Some(id) = resumed["id"].as_str() {
            stack.stop(id).await;
        }
    }
    call(
        Method::POST,
        "/agents/{id}/resume",
        &format!("/agents/{id}/resume"),
        json!({}),
    )
    .await;
    stack.settle().await;
}

#[tokio::test]
async fn answers_fit_the_document() {
    let stack = Stack::start().await;
    let document = Document::of(&stack).await;
    let check = async |route: &str, path: &str| {
        let answer = stack.get(path).await;
        document.check(&Method::GET, route, None, &answer);
        answer.body
    };
    let instance = async |id: &str| {
        for rest in [
            "",
            "/status",
            "/session",
            "/turns",
            "/events",
            "/logs",
            "/permissions",
            "/elicitations",
        ] {
            check(&format!("/agents/{{id}}{rest}"), &format!("/agents/{id}{rest}")).await;
        }
        check(
            "/agents/{id}/events",
            &format!("/agents/{id}/events?snapshot=true"),
        )
        .await;
    };
    // Before the agent has said anything, in a turn that asks, and after one that failed.
    let starting = stack
        .launch(json!({"wait": "none", "prompt": "/say x", "env": {"MOCK_INIT": "never"}}))
        .await;
    instance(&starting).await;
    let id = stack
        .launch(json!({"permission_policy": "ask", "metadata": {"a": [1]}}))
        .await;
    stack.turn(&id, "/plan one;two\n/usage 10\n/say done").await;
    stack.turn(&id, "/error -32603 no").await;
    let turn = stack.prompt(&id, "/permission").await;
    stack
        .until("/permissions?status=pending", |page| page["total"] == 1)
        .await;
    instance(&id).await;
    check(
        "/agents/{id}/turns/{turn_id}",
        &format!("/agents/{id}/turns/{turn}"),
    )
    .await;
    let failed = stack
        .try_launch(json!({"env": {"MOCK_INIT": "exit:3"}}))
        .await
        .expect(201);
    instance(failed["id"].as_str().unwrap()).await;
    let session = stack.instance(&id).await["session_id"]
        .as_str()
        .unwrap()
        .to_owned();
    check("/sessions/{id}", &format!("/sessions/{session}")).await;
    check("/sessions/{id}/events", &format!("/sessions/{session}/events")).await;
    let types = check("/agents/types", "/agents/types").await;
    let one = types["types"][0]["id"].as_str().unwrap();
    check("/agents/types/{id}", &format!("/agents/types/{one}")).await;
    for list in ["/agents", "/sessions", "/tasks", "/permissions", "/elicitations"] {
        check(list, list).await;
        check(list, &format!("{list}?limit=0")).await;
    }
    check("/agents/{id}", "/agents/none").await;
    stack.settle().await;
}
