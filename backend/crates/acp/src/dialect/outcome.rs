//! What the answers to `session/new` and its like, and to `session/prompt`, mean.

use serde_json::value::RawValue;

use super::Dialect;
use crate::json::{self, Fields};
use crate::rpc_error::{INTERNAL_ERROR, RpcError};

/// Stands for a stop reason that the agent left out or garbled.
pub const UNKNOWN_STOP_REASON: &str = "unknown";

/// What an agent says of a session that it made or took up.
#[derive(Debug, Clone, Default)]
pub struct SessionInfo {
    /// Its id. None after `session/load`, where the caller knows it.
    pub session_id: Option<String>,
    /// `modes`, unchanged.
    pub modes: Option<Box<RawValue>>,
    /// `models`, unchanged.
    pub models: Option<Box<RawValue>>,
    /// `configOptions`, unchanged.
    pub config_options: Option<Box<RawValue>>,
    /// `mcpState`, unchanged; Koda.
    pub mcp_state: Option<Box<RawValue>>,
    /// `subagents`, unchanged; Koda.
    pub subagents: Option<Box<RawValue>>,
}

/// Reads the answer to `session/new`, `session/load`, `session/resume` or `session/fork`, which may be null.
pub fn session_established(dialect: Dialect, result: &RawValue) -> SessionInfo {
    let fields = Fields::of(result);
    let session_id = fields
        .get("sessionId")
        .and_then(json::text_or_number)
        .filter(|id| !id.is_empty())
        .map(Into::into);
    match dialect {
        Dialect::Kandev => SessionInfo {
            session_id,
            ..SessionInfo::default()
        },
        Dialect::Acp => SessionInfo {
            session_id,
            modes: fields.owned("modes"),
            models: fields.owned("models"),
            config_options: fields.owned("configOptions"),
            mcp_state: fields.owned("mcpState"),
            subagents: fields.owned("subagents"),
        },
    }
}

/// Why a turn was broken off, out of the `_meta` of its end; Koda.
pub fn stop_detail(meta: &RawValue) -> Option<String> {
    Fields::of(meta).string("com.kodadev.stopDetail")
}

/// What an answer to `session/prompt` means for the turn.
#[derive(Debug, Clone)]
pub enum PromptOutcome {
    /// The turn has ended.
    Ended {
        /// Why, in the agent's words; [`UNKNOWN_STOP_REASON`] if it has none.
        stop_reason: String,
        /// `usage`, unchanged.
        usage: Option<Box<RawValue>>,
        /// `_meta`, unchanged: Koda tells details of the stop there.
        meta: Option<Box<RawValue>>,
    },
    /// The turn runs; an update will end it.
    Accepted,
    /// There was no turn, or it broke.
    Failed(RpcError),
}

/// Reads the answer to `session/prompt`.
///
/// In the kandev dialect only a plain `"accepted":false` is a refusal, and anything that names no stop reason leaves
/// the turn's end to an update.
pub fn prompt_outcome(dialect: Dialect, outcome: Result<Box<RawValue>, RpcError>) -> PromptOutcome {
    let result = match outcome {
        Ok(result) => result,
        Err(error) => return PromptOutcome::Failed(error),
    };
    let fields = Fields::of(&result);
    let stop_reason = fields.string("stopReason").filter(|reason| !reason.is_empty());
    if dialect == Dialect::Kandev && stop_reason.is_none() {
        if fields.get("accepted").is_some_and(|raw| raw.get() == "false") {
            let error = RpcError::new(INTERNAL_ERROR, "the agent did not accept the prompt");
            return PromptOutcome::Failed(error.with_data(&result));
        }
        return PromptOutcome::Accepted;
    }
    PromptOutcome::Ended {
        stop_reason: stop_reason.unwrap_or_else(|| UNKNOWN_STOP_REASON.to_owned()),
        usage: fields.owned("usage"),
        meta: fields.owned("_meta"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> &RawValue {
        serde_json::from_str(json).unwrap()
    }

    fn stop(dialect: Dialect, json: &str) -> Option<String> {
        match prompt_outcome(dialect, Ok(raw(json).to_owned())) {
            PromptOutcome::Ended { stop_reason, .. } => Some(stop_reason),
            PromptOutcome::Accepted | PromptOutcome::Failed(_) => None,
        }
    }

    #[test]
    fn an_acp_answer_always_ends_the_turn() {
        let acp = |json| stop(Dialect::Acp, json).unwrap();
        assert_eq!(acp(r#"{"stopReason":"end_turn"}"#), "end_turn");
        assert_eq!(acp(r#"{"stopReason":"quantum_flip"}"#), "quantum_flip");
        for odd in [
            "{}",
            "null",
            r#"{"stopReason":null}"#,
            r#"{"stopReason":3}"#,
            r#"{"stopReason":""}"#,
        ] {
            assert_eq!(acp(odd), UNKNOWN_STOP_REASON);
        }
        let detail = r#"{"stopReason":"end_turn","usage":{"totalTokens":3},"_meta":{"com.kodadev.stopDetail":"loop_detected"}}"#;
        let PromptOutcome::Ended { usage, meta, .. } =
            prompt_outcome(Dialect::Acp, Ok(raw(detail).to_owned()))
        else {
            panic!()
        };
        assert_eq!(usage.unwrap().get(), r#"{"totalTokens":3}"#);
        assert_eq!(stop_detail(&meta.unwrap()).as_deref(), Some("loop_detected"));
        assert_eq!(stop_detail(raw(r#"{"com.kodadev.stopDetail":7}"#)), None);
    }

    #[test]
    fn a_kandev_answer_leaves_the_end_to_an_update() {
        let kandev = |json| prompt_outcome(Dialect::Kandev, Ok(raw(json).to_owned()));
        assert!(matches!(kandev(r#"{"accepted":true}"#), PromptOutcome::Accepted));
        assert!(matches!(kandev("null"), PromptOutcome::Accepted));
        assert!(matches!(
            kandev(r#"{"accepted":false}"#),
            PromptOutcome::Failed(_)
        ));
        assert_eq!(
            stop(Dialect::Kandev, r#"{"stopReason":"end_turn"}"#).as_deref(),
            Some("end_turn")
        );
    }

    #[test]
    fn an_error_fails_the_turn() {
        let error = RpcError::new(-32000, "auth");
        let PromptOutcome::Failed(got) = prompt_outcome(Dialect::Acp, Err(error.clone())) else {
            panic!()
        };
        assert_eq!(got, error);
    }

    #[test]
    fn sessions_are_read_tolerantly() {
        let id = |json| session_established(Dialect::Acp, raw(json)).session_id;
        assert_eq!(id(r#"{"sessionId":"0"}"#).as_deref(), Some("0"));
        assert_eq!(id(r#"{"sessionId":17}"#).as_deref(), Some("17"));
        assert_eq!(id(r#"{"sessionId":""}"#), None);
        assert_eq!(id("null"), None);
        let info = session_established(
            Dialect::Acp,
            raw(r#"{"sessionId":"s","modes":{"currentModeId":"a"},"models":null,"configOptions":[1]}"#),
        );
        assert_eq!(info.modes.unwrap().get(), r#"{"currentModeId":"a"}"#);
        assert!(info.models.is_none());
        assert_eq!(info.config_options.unwrap().get(), "[1]");
    }
}
