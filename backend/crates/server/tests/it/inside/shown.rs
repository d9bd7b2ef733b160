//! Tool calls that show a terminal.

use serde_json::json;

use super::{launch, said, start, told};
use crate::protocol::of_kind;

#[tokio::test]
async fn a_tool_call_shows_the_terminal_that_was_created_for_it() {
    let stack = start("").await;
    let id = launch(&stack).await;
    let script = "/term t echo shown\n/term-show t\n/term-wait t\n/term-release t\n/term-show ghost";
    said(&stack, &id, script).await;
    let terminal = told(&stack, &id, "terminal").await[0]["terminal_id"].clone();
    let updates = of_kind(&stack, &id, "update").await;
    let shown: Vec<_> = updates
        .iter()
        .map(|e| &e["data"]["update"])
        .filter(|update| update["sessionUpdate"] == "tool_call")
        .map(|update| (&update["kind"], &update["content"]))
        .collect();
    let content = |terminal: &serde_json::Value| json!([{"type": "terminal", "terminalId": terminal}]);
    // Also one that is not there, which is the agent's affair.
    assert_eq!(
        shown,
        [
            (&json!("execute"), &content(&terminal)),
            (&json!("execute"), &content(&json!("ghost")))
        ]
    );
    stack.settle().await;
}
