//! What cannot be is refused with the documented body, and changes nothing.

mod commands;
mod launches;
mod queries;
mod requests;

use reqwest::RequestBuilder;
use serde_json::Value;
use sqlx::AssertSqlSafe;

use crate::support::{Answer, Stack};

/// How many tasks, instances, turns and sessions there are, and which containers.
async fn counts(stack: &Stack) -> (Vec<i64>, Vec<String>) {
    let pool = stack.database.pool().await;
    let mut counts = Vec::new();
    for table in ["tasks", "agent_instances", "turns", "sessions"] {
        let count = format!("SELECT count(*) FROM {table}");
        counts.push(
            sqlx::query_scalar(AssertSqlSafe(count))
                .fetch_one(&pool)
                .await
                .unwrap(),
        );
    }
    pool.close().await;
    (counts, stack.containers())
}

/// Sends, and reads the whole answer.
async fn send(request: RequestBuilder) -> Answer {
    read(request.send().await.unwrap()).await
}

/// 400 `validation_error` that names `field`, or something in it.
#[track_caller]
fn names(answer: Answer, field: &str, case: &Value) -> Value {
    assert_eq!(answer.status, 400, "{case}: {:#}", answer.body);
    let body = answer.refused(400, "validation_error");
    let named = body["details"]["field"]
        .as_str()
        .unwrap_or_else(|| panic!("{case}: {body:#}"));
    let inside = named
        .strip_prefix(field)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
    assert!(inside, "{case}: {named} and not {field}");
    let message = body["message"].as_str().unwrap();
    for rust in [
        "struct",
        "enum ",
        "digit found",
        "i32",
        "i64",
        "u64",
        "usize",
        "premature",
        "variant",
    ] {
        assert!(!message.contains(rust), "{case}: {message}");
    }
    body
}

async fn read(response: reqwest::Response) -> Answer {
    let status = response.status();
    let text = response.text().await.unwrap();
    Answer {
        status,
        body: serde_json::from_str(&text).unwrap_or(Value::String(text)),
    }
}
