//! The form of content blocks.

use serde_json::Value;

use crate::{UploadId, media};

/// Longest path of the workspace, in bytes.
const MAX_PATH: usize = 4096;

/// A file that a block names.
pub(super) enum Reference<'a> {
    Upload(UploadId),
    Path(&'a str),
}

/// Only where the block is one that may.
pub(super) fn reference(block: &Value) -> Option<Reference<'_>> {
    if !matches!(
        block["type"].as_str()?,
        "image" | "audio" | "resource" | "resource_link" | "file"
    ) {
        return None;
    }
    if let Some(id) = block["upload_id"].as_str() {
        return id.parse().ok().map(Reference::Upload);
    }
    block["path"].as_str().map(Reference::Path)
}

/// Why a block is none.
pub(super) enum Problem {
    Kind(String),
    Form(String),
}

/// Checks that a block has the fields that its kind needs.
pub(super) fn check_block(block: &Value) -> Result<(), Problem> {
    let malformed = |reason: String| Err(Problem::Form(reason));
    let Some(kind) = block.get("type").and_then(Value::as_str) else {
        return malformed("it has no 'type'".to_owned());
    };
    let needed: &[&str] = match kind {
        "text" => &["text"],
        "image" | "audio" => &["data", "mimeType"],
        "resource_link" => &["uri", "name"],
        "resource" => &[],
        "file" => &["upload_id"],
        other => return Err(Problem::Kind(other.to_owned())),
    };
    if kind != "text" && (block.get("upload_id").is_some() || block.get("path").is_some()) {
        return check_reference(kind, block).map_err(Problem::Form);
    }
    for field in needed {
        if !block.get(field).is_some_and(Value::is_string) {
            let or = match kind {
                "image" | "audio" => ", or an 'upload_id' or 'path'",
                "resource_link" => ", or a 'path'",
                "file" => " or 'path'",
                _ => "",
            };
            return malformed(format!("a '{kind}' block needs the string '{field}'{or}"));
        }
    }
    if matches!(kind, "image" | "audio") {
        let mime_type = block["mimeType"].as_str().unwrap_or_default();
        if !media::is_type(mime_type) || mime_type.split('/').next() != Some(kind) {
            return malformed(format!("'mimeType' must be one of {kind}/…"));
        }
        if !is_base64(block["data"].as_str().unwrap_or_default()) {
            return malformed("'data' must be base64 (RFC 4648, padded), and not empty".to_owned());
        }
    }
    if kind == "resource" {
        let resource = &block["resource"];
        if !resource["uri"].is_string() {
            return malformed(
                "a 'resource' block needs 'resource.uri', or an 'upload_id' or 'path'".to_owned(),
            );
        }
        match (&resource["text"], &resource["blob"]) {
            (Value::String(_), Value::Null) => {}
            (Value::Null, Value::String(blob)) if blob.is_empty() || is_base64(blob) => {}
            (Value::Null, Value::String(_)) => {
                return malformed("'resource.blob' must be base64 (RFC 4648, padded)".to_owned());
            }
            _ => return malformed("a 'resource' has either a 'text' or a 'blob'".to_owned()),
        }
    }
    Ok(())
}

fn check_reference(kind: &str, block: &Value) -> Result<(), String> {
    let content = ["data", "resource", "uri"];
    if content.iter().any(|field| block.get(field).is_some()) {
        return Err("it names a file and holds one as well".to_owned());
    }
    match (block.get("upload_id"), block.get("path")) {
        (Some(_), Some(_)) => Err("give either 'upload_id' or 'path', not both".to_owned()),
        (Some(Value::String(id)), None) if id.parse::<UploadId>().is_ok() => match kind {
            "resource_link" => {
                Err("an upload is nothing that the agent could open: use 'resource' or 'file'".to_owned())
            }
            _ => Ok(()),
        },
        (Some(_), None) => Err("'upload_id' must be the id of an upload".to_owned()),
        (None, Some(Value::String(path)))
            if !path.is_empty() && path.len() <= MAX_PATH && !path.contains('\0') =>
        {
            Ok(())
        }
        _ => Err(format!(
            "'path' must be a path of the workspace, of at most {MAX_PATH} bytes"
        )),
    }
}

/// RFC 4648, section 4: the standard alphabet, padded. Agents hand it on as it is, and what else decoders may take differs from one
/// to the next; most words of plain text would pass for it without padding.
fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let padding = text.len() - digits.len();
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"+/".contains(&b);
    !digits.is_empty() && padding <= 2 && text.len().is_multiple_of(4) && digits.bytes().all(legal)
}
