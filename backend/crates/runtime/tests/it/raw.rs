//! The engine's API without the code under test, blocking, so that it also serves in `Drop`.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;

pub(crate) const IMAGE: &str = "kandev-test/busybox:1";
const BUSYBOX: &str = "/bin/busybox";
const APPLETS: [&str; 26] = [
    "awk", "cat", "chmod", "chown", "date", "dd", "echo", "env", "false", "grep", "head", "id", "kill", "ln",
    "ls", "mkdir", "printf", "pwd", "seq", "sh", "sleep", "stat", "touch", "tr", "true", "yes",
];

/// The path of the engine's socket.
pub(crate) fn socket() -> String {
    let host = std::env::var("DOCKER_HOST").unwrap_or_default();
    host.strip_prefix("unix://")
        .unwrap_or("/var/run/docker.sock")
        .to_owned()
}

/// One request; HTTP/1.0, so that the answer ends with the connection and is not chunked.
pub(crate) fn request(method: &str, target: &str, content_type: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let mut stream = UnixStream::connect(socket()).expect("an engine listens");
    stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    let head = format!(
        "{method} /v1.41{target} HTTP/1.0\r\nHost: engine\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").expect("a head");
    let status = std::str::from_utf8(&answer[9..12]).unwrap().parse().unwrap();
    (status, answer.split_off(end + 4))
}

pub(crate) fn json(method: &str, target: &str, body: &Value) -> Value {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let (status, answer) = request(method, target, "application/json", body.as_bytes());
    assert!(
        status < 300,
        "{method} {target}: {status} {}",
        String::from_utf8_lossy(&answer)
    );
    serde_json::from_slice(&answer).unwrap_or(Value::Null)
}

/// What the engine knows of a container.
pub(crate) fn inspect(id: &str) -> Value {
    json("GET", &format!("/containers/{id}/json"), &Value::Null)
}

pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        write!(encoded, "%{byte:02X}").unwrap();
    }
    encoded
}

/// Imports the test image if the engine has none.
pub(crate) fn ensure_image() {
    static ENSURED: OnceLock<()> = OnceLock::new();
    ENSURED.get_or_init(|| {
        // Tests run in processes of their own; two imports would leave an untagged image behind.
        let lock =
            std::fs::File::create(concat!(env!("CARGO_TARGET_TMPDIR"), "/kandev-test-busybox.lock")).unwrap();
        lock.lock().unwrap();
        if request("GET", &format!("/images/{IMAGE}/json"), "text/plain", b"").0 == 200 {
            return;
        }
        let (repository, tag) = IMAGE.split_once(':').unwrap();
        let target = format!("/images/create?fromSrc=-&repo={repository}&tag={tag}");
        let (status, answer) = request("POST", &target, "application/x-tar", &root());
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
    });
}

/// A root file system as an archive.
fn root() -> Vec<u8> {
    let busybox = std::fs::read(BUSYBOX).expect("package busybox-static is installed");
    let mut builder = tar::Builder::new(Vec::new());
    let header = |kind, mode, size| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        header
    };
    for (directory, mode) in [
        ("bin/", 0o755),
        ("etc/", 0o755),
        ("tmp/", 0o1777),
        ("workspace/", 0o777),
    ] {
        builder
            .append_data(
                &mut header(tar::EntryType::Directory, mode, 0),
                directory,
                &[][..],
            )
            .unwrap();
    }
    let mut file = header(tar::EntryType::Regular, 0o755, busybox.len() as u64);
    builder
        .append_data(&mut file, "bin/busybox", &busybox[..])
        .unwrap();
    for (path, contents) in [
        (
            "etc/passwd",
            "root:x:0:0::/:/bin/sh\nnode:x:1000:1001::/workspace:/bin/sh\n",
        ),
        ("etc/group", "root:x:0:\nnode:x:1001:\nstaff:x:50:node\n"),
    ] {
        let mut file = header(tar::EntryType::Regular, 0o644, contents.len() as u64);
        builder.append_data(&mut file, path, contents.as_bytes()).unwrap();
    }
    for applet in APPLETS {
        let mut link = header(tar::EntryType::Symlink, 0o777, 0);
        builder
            .append_link(&mut link, format!("bin/{applet}"), "busybox")
            .unwrap();
    }
    builder.into_inner().unwrap()
}
