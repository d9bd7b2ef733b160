//! Prompts as content blocks: which kinds an agent takes, and the files that they name.
//!
//! A block may name a file in place of holding it: one that was uploaded (`upload_id`), or one of the workspace (`path`). So it
//! is stored and shown; what is in the file is put in when the prompt goes to the agent. A block of the kind `file`, which ACP
//! does not have, becomes whatever the agent takes.

mod block;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use self::block::{Problem, Reference, check_block, reference};
use crate::UploadId;
use crate::media;

/// How many files one prompt may name.
pub const MAX_FILES: usize = 16;
/// How many bytes they may have in all: an agent reads a prompt as one line.
pub const MAX_FILE_BYTES: usize = 24 << 20;

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
    /// A file that it names.
    #[error("the file of block {index} {problem}")]
    File {
        /// Its position from 0.
        index: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// Too much at once.
    #[error("a prompt names at most {files} files, of {bytes} bytes in all", files = MAX_FILES, bytes = MAX_FILE_BYTES)]
    TooMuch,
}

impl PromptError {
    /// A file that cannot be used.
    pub fn file(index: usize, problem: impl Into<String>) -> Self {
        Self::File {
            index,
            problem: problem.into(),
        }
    }
}

/// What is in a file that a prompt names.
#[derive(Clone, PartialEq, Eq)]
pub struct FileContent {
    /// For people.
    pub name: String,
    /// `type/subtype`.
    pub mime_type: String,
    /// By which the agent knows it.
    pub uri: String,
    /// All of it.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for FileContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileContent({}, {} bytes)", self.name, self.bytes.len())
    }
}

impl FileContent {
    /// The agent sees the file itself.
    fn is_in_workspace(&self) -> bool {
        self.uri.starts_with("file://")
    }
}

/// A prompt that has at least one well-formed block, and something in it. It is stored without what is in its files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "Vec<Value>", try_from = "Vec<Value>")]
pub struct Prompt {
    blocks: Vec<Value>,
    files: BTreeMap<UploadId, Arc<FileContent>>,
}

impl From<Prompt> for Vec<Value> {
    fn from(prompt: Prompt) -> Self {
        prompt.blocks
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
        Ok(Self {
            blocks: vec![json!({"type": "text", "text": message})],
            files: BTreeMap::new(),
        })
    }

    /// Checks that every block has the fields its kind needs; unknown keys are kept.
    pub fn blocks(blocks: Vec<Value>) -> Result<Self, PromptError> {
        for (index, block) in blocks.iter().enumerate() {
            check_block(block).map_err(|problem| match problem {
                Problem::Kind(kind) => PromptError::Unsupported { index, kind },
                Problem::Form(reason) => PromptError::Malformed { index, reason },
            })?;
        }
        let blank = |b: &Value| b["type"] == "text" && b["text"].as_str().is_none_or(|t| t.trim().is_empty());
        if blocks.iter().all(blank) {
            return Err(PromptError::Empty);
        }
        let names_file = |block: &&Value| reference(block).is_some();
        if blocks.iter().filter(names_file).count() > MAX_FILES {
            return Err(PromptError::TooMuch);
        }
        Ok(Self {
            blocks,
            files: BTreeMap::new(),
        })
    }

    /// One that is on record: it was checked when it was taken, be it by an older version.
    pub const fn stored(blocks: Vec<Value>) -> Self {
        Self {
            blocks,
            files: BTreeMap::new(),
        }
    }

    /// The blocks, as they are stored.
    pub fn as_blocks(&self) -> &[Value] {
        &self.blocks
    }

    /// All text blocks, a line each, for agents that take only text.
    pub fn to_text(&self) -> String {
        let texts: Vec<&str> = self
            .blocks
            .iter()
            .filter_map(|b| b["text"].as_str().or_else(|| b["uri"].as_str()))
            .collect();
        texts.join("\n")
    }

    /// The uploads that are named and not there yet, with the first block that names each.
    pub fn missing(&self) -> Vec<(usize, UploadId)> {
        let mut missing: Vec<(usize, UploadId)> = Vec::new();
        for (index, block) in self.blocks.iter().enumerate() {
            if let Some(Reference::Upload(id)) = reference(block)
                && !self.files.contains_key(&id)
                && missing.iter().all(|(_, known)| *known != id)
            {
                missing.push((index, id));
            }
        }
        missing
    }

    /// The files of the workspace that are named: the block, its kind, the path.
    pub fn paths(&self) -> Vec<(usize, String, String)> {
        let named = |(index, block): (usize, &Value)| match reference(block)? {
            Reference::Path(path) => Some((index, block["type"].as_str()?.to_owned(), path.to_owned())),
            Reference::Upload(_) => None,
        };
        self.blocks.iter().enumerate().filter_map(named).collect()
    }

    /// Puts in what is in an upload.
    pub fn put_file(&mut self, id: UploadId, content: Arc<FileContent>) -> Result<(), PromptError> {
        self.files.insert(id, content);
        let bytes: usize = self.files.values().map(|file| file.bytes.len()).sum();
        if bytes > MAX_FILE_BYTES {
            return Err(PromptError::TooMuch);
        }
        Ok(())
    }

    /// Lets a block name this upload in place of its path.
    pub fn name_upload(
        &mut self,
        index: usize,
        id: UploadId,
        content: Arc<FileContent>,
    ) -> Result<(), PromptError> {
        let name = content.name.clone();
        self.change(index, |block| {
            block.remove("path");
            block.insert("upload_id".to_owned(), json!(id));
            block.insert("name".to_owned(), json!(name));
        });
        self.put_file(id, content)
    }

    /// Lets a block be a link to a file in place of its path.
    pub fn link(&mut self, index: usize, uri: &str, name: &str, size: u64) {
        self.change(index, |block| {
            block.remove("path");
            block.insert("type".to_owned(), json!("resource_link"));
            block.insert("uri".to_owned(), json!(uri));
            block.entry("name").or_insert_with(|| json!(name));
            block.entry("size").or_insert_with(|| json!(size));
            if let Some(media_type) = media::type_of_name(name) {
                block.entry("mimeType").or_insert_with(|| json!(media_type));
            }
        });
    }

    fn change(&mut self, index: usize, change: impl FnOnce(&mut Map<String, Value>)) {
        if let Some(Value::Object(block)) = self.blocks.get_mut(index) {
            change(block);
        }
    }

    /// Fails on the first block that an agent with these capabilities does not take.
    pub fn supported_by(&self, capabilities: PromptCapabilities) -> Result<(), PromptError> {
        self.each(capabilities, |_, _, _| ())
    }

    /// As an agent with these capabilities gets it: with what is in the files.
    pub fn for_agent(&self, capabilities: PromptCapabilities) -> Result<Self, PromptError> {
        let mut blocks = Vec::with_capacity(self.blocks.len());
        self.each(capabilities, |block, kind, file| {
            blocks.push(file.map_or_else(|| block.clone(), |file| filled(block, kind, file)));
        })?;
        Ok(Self {
            blocks,
            files: BTreeMap::new(),
        })
    }

    /// Each block with the kind that it has for the agent, and its file.
    fn each<'a>(
        &'a self,
        capabilities: PromptCapabilities,
        mut take: impl FnMut(&'a Value, &'a str, Option<&'a FileContent>),
    ) -> Result<(), PromptError> {
        for (index, block) in self.blocks.iter().enumerate() {
            let given = block["type"].as_str().unwrap_or_default();
            let file = match reference(block) {
                None => None,
                Some(Reference::Upload(id)) => match self.files.get(&id) {
                    Some(file) => Some(file.as_ref()),
                    None => return Err(PromptError::file(index, "is not there any more")),
                },
                Some(Reference::Path(_)) => {
                    return Err(PromptError::file(index, "is not in the agent's reach"));
                }
            };
            let kind = match file {
                Some(file) if given == "file" => best_kind(file, capabilities),
                Some(file) => {
                    let fits = match given {
                        "image" | "audio" => file.mime_type.split('/').next() == Some(given),
                        _ => true,
                    };
                    if !fits {
                        let problem = format!("is of type {}, and no {given}", file.mime_type);
                        return Err(PromptError::file(index, problem));
                    }
                    given
                }
                None => given,
            };
            let taken = match kind {
                "image" => capabilities.image,
                "audio" => capabilities.audio,
                "resource" => capabilities.embedded_context,
                _ => true,
            };
            if !taken {
                return Err(PromptError::Unsupported {
                    index,
                    kind: given.to_owned(),
                });
            }
            take(block, kind, file);
        }
        Ok(())
    }
}

/// What a `file` becomes. One that the agent sees itself is only linked where it would have to be embedded.
fn best_kind(file: &FileContent, capabilities: PromptCapabilities) -> &'static str {
    match file.mime_type.split('/').next() {
        Some("image") if capabilities.image => "image",
        Some("audio") if capabilities.audio => "audio",
        _ if file.is_in_workspace() => "resource_link",
        _ => "resource",
    }
}

/// A block with what is in its file.
fn filled(block: &Value, kind: &str, file: &FileContent) -> Value {
    let mut filled = block.as_object().cloned().unwrap_or_default();
    for ours in ["upload_id", "path", "name"] {
        filled.remove(ours);
    }
    filled.insert("type".to_owned(), json!(kind));
    let fields = match kind {
        "resource" => {
            let mut resource = json!({"uri": file.uri, "mimeType": file.mime_type});
            match std::str::from_utf8(&file.bytes) {
                Ok(text) if !text.contains('\0') => resource["text"] = json!(text),
                _ => resource["blob"] = json!(BASE64_STANDARD.encode(&file.bytes)),
            }
            json!({"resource": resource})
        }
        "resource_link" => {
            json!({"uri": file.uri, "name": file.name, "mimeType": file.mime_type, "size": file.bytes.len()})
        }
        "image" => {
            json!({"data": BASE64_STANDARD.encode(&file.bytes), "mimeType": file.mime_type, "uri": file.uri})
        }
        _ => json!({"data": BASE64_STANDARD.encode(&file.bytes), "mimeType": file.mime_type}),
    };
    if let Value::Object(fields) = fields {
        filled.extend(fields);
    }
    Value::Object(filled)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ALL: PromptCapabilities = PromptCapabilities {
        image: true,
        audio: true,
        embedded_context: true,
    };

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
        let id = UploadId::generate();
        for good in [
            json!({"type": "text", "text": "a", "path": "of its own", "annotations": {"x": 1}}),
            json!({"type": "image", "data": "AA==", "mimeType": "image/png"}),
            json!({"type": "audio", "data": "+/A=", "mimeType": "audio/wav"}),
            json!({"type": "resource", "resource": {"uri": "file:///x", "text": ""}}),
            json!({"type": "resource", "resource": {"uri": "file:///x", "blob": "AA=="}}),
            json!({"type": "resource_link", "uri": "https://x", "name": "x"}),
            json!({"type": "image", "upload_id": id}),
            json!({"type": "resource", "path": "a/b"}),
            json!({"type": "resource_link", "path": "a/b"}),
            json!({"type": "file", "path": "a/b"}),
        ] {
            assert!(Prompt::blocks(vec![good.clone()]).is_ok(), "{good}");
        }
        for bad in [
            json!("hi"),
            json!({"type": "image", "data": "AA=="}),
            json!({"type": "image", "data": "AA==", "mimeType": "text/plain"}),
            json!({"type": "image", "data": "A", "mimeType": "image/png"}),
            json!({"type": "image", "data": "", "mimeType": "image/png"}),
            json!({"type": "audio", "data": "not base64", "mimeType": "audio/wav"}),
            json!({"type": "audio", "data": "not-base64==", "mimeType": "audio/wav"}),
            json!({"type": "audio", "data": "garbage", "mimeType": "audio/wav"}),
            json!({"type": "audio", "data": "AA=A", "mimeType": "audio/wav"}),
            json!({"type": "resource", "resource": {"uri": "file:///x"}}),
            json!({"type": "resource", "resource": {"uri": "file:///x", "text": "a", "blob": "AA=="}}),
            json!({"type": "resource", "resource": {"uri": "file:///x", "blob": "?"}}),
            json!({"type": "resource", "resource": {"text": "a"}}),
            json!({"type": "resource_link", "uri": "https://x"}),
            json!({"type": "resource_link", "upload_id": id}),
            json!({"type": "image", "upload_id": "x"}),
            json!({"type": "image", "upload_id": id, "path": "a"}),
            json!({"type": "image", "upload_id": id, "data": "AA=="}),
            json!({"type": "file"}),
            json!({"type": "file", "path": ""}),
            json!({"type": "file", "path": "a\u{0}"}),
            json!({"type": "file", "path": 7}),
        ] {
            let malformed = Prompt::blocks(vec![json!({"type": "text", "text": "a"}), bad.clone()]);
            assert!(
                matches!(malformed, Err(PromptError::Malformed { index: 1, .. })),
                "{bad}: {malformed:?}"
            );
        }
        assert!(matches!(
            Prompt::blocks(vec![json!({"type":"hologram"})]),
            Err(PromptError::Unsupported { index: 0, .. })
        ));
        let many = vec![json!({"type": "file", "path": "a"}); MAX_FILES + 1];
        assert_eq!(Prompt::blocks(many), Err(PromptError::TooMuch));
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

    /// A prompt of one block that names this file, as an agent gets it.
    fn sent(
        block: Value,
        file: &FileContent,
        capabilities: PromptCapabilities,
    ) -> Result<Value, PromptError> {
        let id = UploadId::generate();
        let mut block = block;
        block["upload_id"] = json!(id);
        let mut prompt = Prompt::blocks(vec![block]).unwrap();
        assert_eq!(prompt.missing(), [(0, id)]);
        prompt.put_file(id, Arc::new(file.clone())).unwrap();
        assert_eq!(prompt.missing(), []);
        // It is stored without the file.
        assert_eq!(json!(prompt)[0]["upload_id"], json!(id));
        prompt.supported_by(capabilities)?;
        Ok(json!(prompt.for_agent(capabilities)?)[0].clone())
    }

    #[test]
    fn files_become_what_the_agent_takes() {
        let file = |name: &str, mime_type: &str, uri: &str, bytes: &[u8]| FileContent {
            name: name.to_owned(),
            mime_type: mime_type.to_owned(),
            uri: uri.to_owned(),
            bytes: bytes.to_owned(),
        };
        let none = PromptCapabilities::default();
        let png = file("a.png", "image/png", "kandev:///a.png", b"\0\0");
        let image = json!({"type": "image", "data": "AAA=", "mimeType": "image/png", "uri": "kandev:///a.png", "_meta": {"k": 1}});
        assert_eq!(
            sent(json!({"type": "image", "_meta": {"k": 1}}), &png, ALL).unwrap(),
            image
        );
        assert_eq!(
            sent(json!({"type": "file", "_meta": {"k": 1}}), &png, ALL).unwrap(),
            image
        );
        let blob = json!({"type": "resource", "resource": {"uri": "kandev:///a.png", "mimeType": "image/png", "blob": "AAA="}});
        assert_eq!(sent(json!({"type": "resource"}), &png, ALL).unwrap(), blob);
        let binary = file("b", "application/octet-stream", "kandev:///b", b"\xff");
        assert_eq!(
            sent(json!({"type": "file"}), &binary, ALL).unwrap()["resource"]["blob"],
            "/w=="
        );
        let wav = file("a.wav", "audio/wav", "kandev:///a", b"\0");
        assert_eq!(
            sent(json!({"type": "audio"}), &wav, ALL).unwrap(),
            json!({"type": "audio", "data": "AA==", "mimeType": "audio/wav"})
        );
        // One of the workspace is linked where its kind is not taken.
        let shot = file("shot.png", "image/png", "file:///workspace/shot.png", b"\0");
        assert_eq!(
            sent(json!({"type": "file"}), &shot, none).unwrap(),
            json!({"type": "resource_link", "uri": "file:///workspace/shot.png", "name": "shot.png", "mimeType": "image/png", "size": 1})
        );
        for (block, file) in [
            ("file", &png),
            ("image", &png),
            ("audio", &wav),
            ("resource", &binary),
            ("image", &shot),
        ] {
            let refused = sent(json!({"type": block}), file, none);
            assert!(
                matches!(refused, Err(PromptError::Unsupported { index: 0, .. })),
                "{refused:?}"
            );
        }
        let refused = sent(json!({"type": "image"}), &wav, ALL);
        assert!(
            matches!(refused, Err(PromptError::File { index: 0, .. })),
            "{refused:?}"
        );
    }

    #[test]
    fn a_file_that_is_gone_is_said_to_be() {
        let gone = json!({"type": "image", "upload_id": UploadId::generate()});
        let gone = Prompt::blocks(vec![gone]).unwrap();
        assert!(matches!(
            gone.for_agent(ALL),
            Err(PromptError::File { index: 0, .. })
        ));
        let mut large = gone.clone();
        let (_, id) = gone.missing()[0];
        let content = FileContent {
            name: String::new(),
            mime_type: "image/png".to_owned(),
            uri: String::new(),
            bytes: vec![0; MAX_FILE_BYTES + 1],
        };
        assert_eq!(large.put_file(id, Arc::new(content)), Err(PromptError::TooMuch));
    }

    #[test]
    fn a_path_becomes_a_link_or_an_upload() {
        let block = |kind: &str| json!({"type": kind, "path": "src/a.rs"});
        let mut prompt = Prompt::blocks(vec![block("file"), block("resource")]).unwrap();
        let paths = prompt.paths();
        assert_eq!(paths[1], (1, "resource".to_owned(), "src/a.rs".to_owned()));
        prompt.link(0, "file:///workspace/src/a.rs", "a.rs", 2);
        let content = FileContent {
            name: "a.rs".to_owned(),
            mime_type: "text/x-rust".to_owned(),
            uri: "file:///workspace/src/a.rs".to_owned(),
            bytes: b"//".to_vec(),
        };
        let id = UploadId::generate();
        prompt.name_upload(1, id, Arc::new(content)).unwrap();
        let link = json!({"type": "resource_link", "uri": "file:///workspace/src/a.rs", "name": "a.rs", "size": 2, "mimeType": "text/x-rust"});
        assert_eq!(
            json!(prompt),
            json!([link, {"type": "resource", "upload_id": id, "name": "a.rs"}])
        );
        let sent = json!(prompt.for_agent(ALL).unwrap());
        assert_eq!(sent[1]["resource"]["text"], "//");
        assert_eq!(
            (prompt.paths().len(), prompt.to_text()),
            (0, "file:///workspace/src/a.rs".to_owned())
        );
    }
}
