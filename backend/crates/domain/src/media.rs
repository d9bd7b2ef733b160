//! What kind of thing a file is.

/// By the file's name. What agents are sent is mostly this.
const BY_EXTENSION: [(&str, &str); 34] = [
    ("aac", "audio/aac"),
    ("avif", "image/avif"),
    ("bmp", "image/bmp"),
    ("c", "text/x-c"),
    ("css", "text/css"),
    ("csv", "text/csv"),
    ("flac", "audio/flac"),
    ("gif", "image/gif"),
    ("go", "text/x-go"),
    ("htm", "text/html"),
    ("html", "text/html"),
    ("java", "text/x-java"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript"),
    ("json", "application/json"),
    ("m4a", "audio/mp4"),
    ("md", "text/markdown"),
    ("mp3", "audio/mpeg"),
    ("oga", "audio/ogg"),
    ("ogg", "audio/ogg"),
    ("opus", "audio/ogg"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("py", "text/x-python"),
    ("rs", "text/x-rust"),
    ("sh", "application/x-sh"),
    ("svg", "image/svg+xml"),
    ("toml", "application/toml"),
    ("ts", "text/x-typescript"),
    ("txt", "text/plain"),
    ("wav", "audio/wav"),
    ("webp", "image/webp"),
    ("yaml", "application/yaml"),
];

/// By what it begins with.
const BY_MAGIC: [(&[u8], &str); 6] = [
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
];

/// The media type that a file of this name has; none if the name does not say.
pub fn type_of_name(name: &str) -> Option<&'static str> {
    let (_, extension) = name.rsplit_once('.')?;
    let extension = extension.to_ascii_lowercase();
    let found = BY_EXTENSION.iter().find(|(known, _)| *known == extension);
    found.map(|(_, media_type)| *media_type)
}

/// The media type of a file by its name, else by what is in it.
pub fn type_of(name: &str, bytes: &[u8]) -> &'static str {
    let by_magic = || {
        let found = BY_MAGIC.iter().find(|(magic, _)| bytes.starts_with(magic));
        found.map(|(_, media_type)| *media_type)
    };
    let riff = |kind: &[u8]| bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(kind);
    type_of_name(name).or_else(by_magic).unwrap_or_else(|| {
        if riff(b"WEBP") {
            "image/webp"
        } else if riff(b"WAVE") {
            "audio/wav"
        } else if std::str::from_utf8(bytes).is_ok_and(|text| !text.contains('\0')) {
            "text/plain"
        } else {
            "application/octet-stream"
        }
    })
}

/// True for `type/subtype`, without parameters (RFC 9110, "media-type").
pub fn is_type(text: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&b);
    let part = |part: &str| !part.is_empty() && part.bytes().all(legal);
    text.len() <= 127
        && text
            .split_once('/')
            .is_some_and(|(kind, sub)| part(kind) && part(sub))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_it_and_else_the_content() {
        assert_eq!(type_of("a.PNG", b""), "image/png");
        assert_eq!(type_of("main.rs", b"\xff"), "text/x-rust");
        assert_eq!(type_of("shot", b"\x89PNG\r\n\x1a\n..."), "image/png");
        assert_eq!(type_of("x", b"RIFF....WEBPVP8"), "image/webp");
        assert_eq!(type_of("x.unknown", "é".as_bytes()), "text/plain");
        assert_eq!(type_of("", b"\xff\xfe"), "application/octet-stream");
    }

    #[test]
    fn media_types_are_known_by_their_form() {
        for good in ["image/png", "image/svg+xml", "application/vnd.a.b-c"] {
            assert!(is_type(good), "{good}");
        }
        for bad in ["", "image", "image/", "/png", "image/png; q=1", "a/b/c", "text/ü"] {
            assert!(!is_type(bad), "{bad}");
        }
    }
}
