//! Prompts as content blocks, and which kinds an agent takes.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Content kinds beyond `text` and `resource_link`, which every agent takes.
/// Source: ACP v1, `promptCapabilities`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct PromptCapabilities {
    /// `image` blocks.
    pub image: bool,
    /// `audio` blocks.
    pub audio: bool,
    /// `resource` blocks.
    pub embedded_context: bool,
}

/// What is wrong with a prompt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum PromptError {
    /// Nothing in it.
    #[error("the prompt is empty")]
    Empty,
    /// A block that is no content block.
    #[error("block {index} is not a content block: {reason}")]
    Malformed {
        /// Its position from 0.
        index: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A kind that the agent did not advertise.
    #[error("block {index} is of kind '{kind}', which this agent does not take")]
    Unsupported {
        /// Its position from 0.
        index: usize,
        /// The kind.
        kind: String,
    },
}

/// A prompt that has at least one well-formed block, and something in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "Vec<Value>", try_from = "Vec<Value>")]
pub struct Prompt(Vec<Value>);

impl From<Prompt> for Vec<Value> {
    fn from(prompt: Prompt) -> Self {
        prompt.0
    }
}

impl TryFrom<Vec<Value>> for Prompt {
    type Error = PromptError;

    fn try_from(blocks: Vec<Value>) -> Result<Self, PromptError> {
        Self::blocks(blocks)
    }
}

impl Prompt {
    /// One text block.
    pub fn text(message: &str) -> Result<Self, PromptError> {
        if message.trim().is_empty() {
            return Err(PromptError::Empty);
        }
        Ok(Self(vec![serde_json::json!({"type": "text", "text": message})]))
    }

    /// Checks that every block has the fields its kind needs; unknown keys are kept.
    pub fn blocks(blocks: Vec<Value>) -> Result<Self, PromptError> {
        for (index, block) in blocks.iter().enumerate() {
            check_block(index, block)?;
        }
        let blank = |b: &Value| b["type"] == "text" && b["text"].as_str().is_none_or(|t| t.trim().is_empty());
        if blocks.iter().all(blank) {
            return Err(PromptError::Empty);
        }
        Ok(Self(blocks))
    }

    /// The blocks.
    pub fn as_blocks(&self) -> &[Value] {
        &self.0
    }

    /// All text blocks, a line each, for agents that take only text.
    pub fn to_text(&self) -> String {
        let texts: Vec<&str> = self
            .0
            .iter()
            .filter_map(|b| b["text"].as_str().or_else(|| b["uri"].as_str()))
            .collect();
        texts.join("\n")
    }

    /// Fails on the first block that an agent with these capabilities does not take.
    pub fn supported_by(&self, capabilities: PromptCapabilities) -> Result<(), PromptError> {
        for (index, block) in self.0.iter().enumerate() {
            let kind = block["type"].as_str().unwrap_or_default();
            let taken = match kind {
                "image" => capabilities.image,
                "audio" => capabilities.audio,
                "resource" => capabilities.embedded_context,
                _ => true,
            };
            if !taken {
                return Err(PromptError::Unsupported {
                    index,
                    kind: kind.to_owned(),
                });
            }
        }
        Ok(())
    }
}

fn check_block(index: usize, block: &Value) -> Result<(), PromptError> {
    let malformed = |reason: String| Err(PromptError::Malformed { index, reason });
    let Some(kind) = block.get("type").and_then(Value::as_str) else {
        return malformed("it has no 'type'".to_owned());
    };
    let needed: &[&str] = match kind {
        "text" => &["text"],
        "image" | "audio" => &["data", "mimeType"],
        "resource_link" => &["uri", "name"],
        "resource" => &[],
        other => {
            return Err(PromptError::Unsupported {
                index,
                kind: other.to_owned(),
            });
        }
    };
    for field in needed {
        if !block.get(field).is_some_and(Value::is_string) {
            return malformed(format!("a '{kind}' block needs the string '{field}'"));
        }
    }
    if kind == "resource" && !block["resource"]["uri"].is_string() {
        return malformed("a 'resource' block needs 'resource.uri'".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn empty_prompts_are_refused() {
        assert_eq!(Prompt::text(" \n"), Err(PromptError::Empty));
        assert_eq!(Prompt::blocks(vec![]), Err(PromptError::Empty));
        assert_eq!(
            Prompt::blocks(vec![json!({"type":"text","text":""})]),
            Err(PromptError::Empty)
        );
    }

    #[test]
    fn blocks_are_checked_by_kind() {
        assert!(matches!(
            Prompt::blocks(vec![json!("hi")]),
            Err(PromptError::Malformed { index: 0, .. })
        ));
        assert!(matches!(
            Prompt::blocks(vec![
                json!({"type":"text","text":"a"}),
                json!({"type":"image","data":"x"})
            ]),
            Err(PromptError::Malformed { index: 1, .. })
        ));
        assert!(matches!(
            Prompt::blocks(vec![json!({"type":"hologram"})]),
            Err(PromptError::Unsupported { index: 0, .. })
        ));
    }

    #[test]
    fn capabilities_decide_what_is_taken() {
        let image =
            Prompt::blocks(vec![json!({"type":"image","data":"AA==","mimeType":"image/png"})]).unwrap();
        assert!(image.supported_by(PromptCapabilities::default()).is_err());
        assert!(
            image
                .supported_by(PromptCapabilities {
                    image: true,
                    ..Default::default()
                })
                .is_ok()
        );
    }
}
