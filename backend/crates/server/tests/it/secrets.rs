//! CASE 35: what was given in `env` is seen by the agent and by nobody else.

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use crate::support::{Stack, docker};

/// In the launch's environment, under a name that says so and one that does not; in an MCP server's; in the type's.
const LAUNCH: &str = "canary-launch-3141";
const PLAIN: &str = "canary-plain-2718";
const SERVER: &str = "canary-server-1618";
const TYPE: &str = "canary-type-1414";
const ALL: [&str; 4] = [LAUNCH, PLAIN, SERVER, TYPE];

const GUARDED: &str = "id = 'guarded'\nname = 'x'\nimage = 'kandev/mock-agent:latest'\nsecret_env = ['QUIET']\n\
    [env]\nDB_PASSWORD = 'canary-type-1414'\nQUIET = 'canary-type-1414'\n\
    [[mounts]]\nsource = '{workspace}'\ntarget = '/workspace'\n\
    [[mounts]]\nsource = '{session_store}'\ntarget = '/sessions'\n\
    [[mcp_servers]]\nname = 'of-type'\ncommand = '/t'\nargs = ['--key=canary-type-1414']\nenv = { K = 'canary-type-1414' }\n";
const IMAGELESS: &str = "id = 'imageless'\nname = 'x'\nimage = 'kandev-test/no-such-image:1'\n";

#[track_caller]
fn clean(what: &str, text: &str) {
    for canary in ALL {
        let hex = canary
            .bytes()
            .fold(String::new(), |hex, b| format!("{hex}{b:02x}"));
        assert!(
            !text.contains(canary) && !text.contains(&hex),
            "{canary} is in {what}: {text}"
        );
    }
}

#[tokio::test]
async fn secrets_stay_between_the_caller_and_the_agent() {
    let environment = [("RUST_LOG", "trace")];
    let mut stack = Stack::with_types(&environment, &[("guarded", GUARDED), ("imageless", IMAGELESS)]).await;
    let server = json!({"name": "s", "command": "/s", "args": [], "env": [{"name": "K", "value": SERVER}]});
    // One that is handed over, and one that is not.
    let url = format!("https://u:{SERVER}@localhost/mcp?key={SERVER}");
    let http = json!({"name": "h", "type": "http", "url": url, "headers": {"Authorization": SERVER}});
    let sse = json!({"name": "e", "type": "sse", "url": url, "headers": {"Authorization": SERVER}});
    let launch = json!({
        "agent_type": "guarded", "task_id": "t", "mcp_servers": [server, http, sse],
        "env": {"MY_API_KEY": LAUNCH, "NOTHING_SPECIAL": PLAIN, "MOCK_WITHOUT": "sse", "MOCK_INPUT_COPY": "/workspace/input"},
        "prompt": "/permission\n/say hello", "wait": "turn",
    });
    let id = stack.launch(launch.clone()).await;
    let container = stack.containers().pop().unwrap();
    let given = docker(&["inspect", "-f", "{{json .Config.Env}}", &container]).join("");
    for canary in [LAUNCH, PLAIN, TYPE] {
        assert!(
            given.contains(canary),
            "{canary} does not reach the agent: {given}"
        );
    }
    clean(
        "the labels",
        &docker(&["inspect", "-f", "{{json .Config.Labels}} {{.Name}}", &container]).join(""),
    );

    let given = json!(stack.sent_to("session/new")).to_string();
    for canary in [SERVER, TYPE] {
        assert!(
            given.contains(canary),
            "{canary} does not reach the agent: {given}"
        );
    }

    // Requests that fail while they hold one.
    let mut failing = launch.clone();
    clean(
        "a conflict",
        &stack
            .try_launch(failing.clone())
            .await
            .refused(409, "conflict")
            .to_string(),
    );
    failing["task_id"] = json!("t2");
    failing["agent_type"] = json!("imageless");
    clean(
        "a failed launch",
        &stack
            .try_launch(failing)
            .await
            .refused(422, "image_not_found")
            .to_string(),
    );
    for bad in [
        json!({"env": LAUNCH}),
        json!({"env": {"MY_API_KEY": [LAUNCH]}}),
        json!({"env": {"MY_API_KEY": format!("{LAUNCH}\u{0}")}}),
        json!({"env": {"MY_API_KEY": LAUNCH.repeat(10_000)}}),
        json!({"mcp_servers": [{"env": [{"name": "K", "value": SERVER}]}]}),
        json!({"mcp_servers": [{"name": "s", "command": "/s", "env": {"K": [SERVER]}}]}),
        json!({"mcp_servers": [{"name": "s", "type": "http", "url": SERVER}]}),
        json!({"mcp_servers": [{"name": "s", "type": SERVER, "url": "http://h"}]}),
        json!({"mcp_servers": [{"name": "s", "type": "http", "url": "http://h", "headers": {"A": format!("{SERVER}\n")}}]}),
        json!({"mcp_servers": SERVER}),
        json!({"permission_policy": LAUNCH}),
        json!({"priority": LAUNCH}),
    ] {
        clean(
            "a refusal",
            &stack
                .try_launch(bad)
                .await
                .refused(400, "validation_error")
                .to_string(),
        );
    }

    stack.stop(&id).await;
    let resumed = stack.resume(&id).await;
    let container = stack.containers().pop().unwrap();
    let given = docker(&["inspect", "-f", "{{json .Config.Env}}", &container]).join("");
    assert!(
        given.contains(LAUNCH),
        "the resumed agent has lost its environment: {given}"
    );
    let servers = stack.turn(resumed["id"].as_str().unwrap(), "/blocks").await;
    assert_eq!(servers["status"], "completed");

    everything_is_clean(&stack, &id).await;
    stack.settle().await;
    let kandev = stack.kandev.as_mut().unwrap();
    kandev.signal(Signal::TERM);
    kandev.read_until("kandev has stopped").await;
    assert!(kandev.log.len() > 50, "the log says too little to prove anything");
    clean("the log", &kandev.log.join("\n"));
}

/// Every `GET` of the API, and every row of the database.
async fn everything_is_clean(stack: &Stack, id: &str) {
    let instance = stack.instance(id).await;
    assert_eq!(
        instance["env_names"],
        json!(["MOCK_INPUT_COPY", "MOCK_WITHOUT", "MY_API_KEY", "NOTHING_SPECIAL"])
    );
    let turns = stack.get(&format!("/agents/{id}/turns")).await.expect(200);
    let asks = stack.get(&format!("/agents/{id}/permissions")).await.expect(200);
    let document = stack.get("/api/v1/openapi.json").await.expect(200);
    let upload = reqwest::Client::new()
        .post(stack.url("/uploads"))
        .body("nothing secret");
    let upload: Value = upload.send().await.unwrap().json().await.unwrap();
    let upload = upload["id"].as_str().unwrap().to_owned();
    let mut asked = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        if item.get("get").is_none() {
            continue;
        }
        let id = match path {
            p if p.contains("/sessions/") => instance["session_id"].as_str().unwrap(),
            p if p.contains("/tasks/") => "t",
            p if p.contains("/types/") => "guarded",
            p if p.contains("/uploads/") => upload.as_str(),
            _ => id,
        };
        let turn = turns["turns"][0]["id"].as_str().unwrap();
        let permission = asks["permissions"][0]["id"].as_str().unwrap();
        let path_of_one = path
            .replace("{turn_id}", turn)
            .replace("{permission_id}", permission)
            .replace("{elicitation_id}", permission);
        let url = stack.url(&path_of_one.replace("{id}", id));
        let response = reqwest::Client::new()
            .request(Method::GET, url)
            .send()
            .await
            .unwrap();
        let status = response.status();
        let text = response.text().await.unwrap();
        // A plain GET is told to upgrade; what it is told is looked at all the same.
        let upgrade = path.ends_with("/ws") && status == 426;
        // The instance has ended, and its agent cannot be asked.
        let ended = path.ends_with("/agents/{id}/sessions") && status == 409;
        // Its agent has asked people for nothing.
        let none = path.ends_with("{elicitation_id}") && status == 404;
        assert!(
            status.is_success() || upgrade || ended || none,
            "{path}: {status} {text}"
        );
        clean(path, &text);
        asked += 1;
    }
    assert!(asked > 12, "only {asked} routes");

    let pool = stack.database.pool().await;
    let tables: Vec<String> = sqlx::query_scalar(
        "SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public'",
    )
    .fetch_all(&pool)
    .await
    .unwrap();
    let mut rows = 0;
    for table in tables {
        let sql = format!("SELECT t::text FROM \"{table}\" t");
        let texts: Vec<Option<String>> = sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_all(&pool)
            .await
            .unwrap();
        rows += texts.len();
        texts.iter().flatten().for_each(|row| clean(&table, row));
    }
    pool.close().await;
    assert!(rows > 10, "only {rows} rows");
}
