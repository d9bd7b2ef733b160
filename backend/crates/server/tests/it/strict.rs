//! That the agents of these tests find what kandev should not send: the image checks every line, and `settle` asks.

use std::io::Write as _;
use std::process::{Command, Stdio};

use futures_util::FutureExt as _;
use serde_json::json;

use crate::support::{FAULT, FAULT_EXIT_CODE, Stack};

/// `_meta` of the schema is an object. It goes to the agent as its caller wrote it.
#[tokio::test]
async fn a_frame_that_is_not_of_the_schema_ends_the_agent_and_settle_says_so() {
    let stack = Stack::start().await;
    let good = stack.launch(json!({"session_params": {"_meta": {}}})).await;
    let bad = stack.try_launch(json!({"session_params": {"_meta": 7}})).await;
    let bad = bad.expect(201)["id"].as_str().unwrap().to_owned();
    let ended = stack.ended(&bad).await;
    assert_eq!(
        (&ended["status"], &ended["exit_code"]),
        (&json!("failed"), &json!(FAULT_EXIT_CODE)),
        "{ended:#}"
    );
    let stderr = stack.logs(&bad, "stderr").await;
    assert_eq!(stderr.len(), 1, "{stderr:?}");
    assert!(
        stderr[0].starts_with(&format!("{FAULT}session/new: /_meta: 7 ")),
        "{stderr:?}"
    );
    assert_eq!(stack.turn(&good, "/say well").await["text"], "well");
    let found = std::panic::AssertUnwindSafe(stack.settle()).catch_unwind().await;
    let found = *found.expect_err("it settled").downcast::<String>().unwrap();
    assert!(
        found.contains(&bad) && found.contains("session/new: /_meta"),
        "{found}"
    );
    stack.settle_but(&[&bad]).await;
}

/// Without a server, which cannot be made to write these.
#[tokio::test]
async fn the_image_lets_no_line_pass_that_is_no_message() {
    let tried = |env: &str, input: &str| {
        let mut agent = Command::new("docker")
            .args(["run", "--rm", "-i", "--network", "none", "-e", env])
            .arg(std::env::var("MOCK_IMAGE").unwrap_or_else(|_| "kandev/mock-agent:latest".to_owned()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It may be gone by then.
        let _ = agent.stdin.take().unwrap().write_all(input.as_bytes());
        let ended = agent.wait_with_output().unwrap();
        let stderr = String::from_utf8(ended.stderr).unwrap();
        (ended.status.code().map(i64::from), stderr)
    };
    let good =
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":1}}\n";
    let half = &format!("{}\n{good}", good.split_at(50).0);
    let bare = &good.replace("\"jsonrpc\":\"2.0\",", "");
    let mixed = &format!("{}{good}", good.split_at(50).0);
    let error = "{\"jsonrpc\":\"2.0\",\"id\":0,\"error\":{\"code\":\"x\",\"message\":\"no\"}}\n";
    for dialect in ["acp", "koda", "kandev"] {
        let env = format!("MOCK_DIALECT={dialect}");
        for (input, problem) in [
            (half, "half a line"),
            (bare, "jsonrpc is None"),
            (mixed, "no JSON-RPC message"),
            (&error.to_owned(), "the error is"),
        ] {
            let (code, stderr) = tried(&env, input);
            assert_eq!(code, Some(FAULT_EXIT_CODE), "{input}: {stderr}");
            assert!(
                stderr.starts_with(&format!("{FAULT}{problem}")),
                "{input}: {stderr}"
            );
        }
        assert_eq!(tried(&env, good), (Some(0), String::new()), "{dialect}");
    }
    assert_eq!(tried("MOCK_STRICT=torn", half).0, Some(0));
    assert_eq!(tried("MOCK_STRICT=0", bare).0, Some(0));
}
