//! What agents ask people for, forms and URLs: who answers, what comes of it, and what a restart leaves of it.

mod asking;
mod early;
mod endings;
mod restarts;

use serde_json::{Value, json};

use crate::asked::{self, turn_ended, turn_state};
use crate::support::{Answer, Stack};

/// Waits for `count` open ones: oldest first.
async fn pending(stack: &Stack, id: &str, count: usize) -> Vec<Value> {
    asked::pending(stack, "elicitations", id, count).await
}

/// Waits for the one that is open.
async fn asked(stack: &Stack, id: &str) -> Value {
    pending(stack, id, 1).await.remove(0)
}

fn path_of(elicitation: &Value) -> String {
    asked::path_of("elicitations", elicitation)
}

async fn answer(stack: &Stack, elicitation: &Value, body: Value) -> Answer {
    stack.post(&path_of(elicitation), &body).await
}

fn accept(content: Value) -> Value {
    json!({"action": "accept", "content": content})
}

/// All of an instance, oldest first.
async fn all(stack: &Stack, id: &str) -> Vec<Value> {
    asked::all(stack, "elicitations", id).await
}
