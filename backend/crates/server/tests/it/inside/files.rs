//! `fs/read_text_file` and `fs/write_text_file`.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use serde_json::json;

use super::{boxed, launch, said, start, told};
use crate::support::Stack;

fn mode(path: &Path) -> (u32, u32, u32) {
    let meta = std::fs::metadata(path).unwrap();
    (meta.uid(), meta.gid(), meta.mode() & 0o7777)
}

#[tokio::test]
async fn files_are_read_by_lines_and_written() {
    let stack = start("").await;
    let id = launch(&stack).await;
    std::fs::write(stack.workspace().join("a"), "one\ntwo\nthrée\n").unwrap();
    let script = [
        "/fs-read a",
        "/fs-read a 2",
        "/fs-read a 2 1",
        "/fs-read a 0 1",
        "/fs-read a 3 9",
        "/fs-read a 4",
        "/fs-read a 9 1",
        "/fs-read a 1 0",
        r"/fs-write new/deep/b hello\nworld",
        "/fs-read new/deep/b",
        "/id \"é-1\"",
        "/fs-write a x",
    ];
    assert_eq!(
        said(&stack, &id, &script.join("\n")).await,
        [
            r#"fs-read: "one\ntwo\nthrée\n""#,
            r#"fs-read: "two\nthrée\n""#,
            r#"fs-read: "two\n""#,
            r#"fs-read: "one\n""#,
            r#"fs-read: "thrée\n""#,
            r#"fs-read: """#,
            r#"fs-read: """#,
            r#"fs-read: """#,
            "fs-write: {}",
            r#"fs-read: "hello\nworld""#,
            "fs-write: {}",
        ]
    );
    assert_eq!(std::fs::read_to_string(stack.workspace().join("a")).unwrap(), "x");
    let new = stack.workspace().join("new/deep/b");
    assert_eq!(mode(&new), (0, 0, 0o644));
    let events = told(&stack, &id, "fs").await;
    assert_eq!(events.len(), 22, "each is an event when asked and when answered");
    assert_eq!(
        events[2],
        json!({"operation": "read", "request_id": 1, "path": "/workspace/a", "line": 2, "outcome": "pending"})
    );
    assert_eq!(
        events[3],
        json!({"operation": "read", "request_id": 1, "path": "/workspace/a", "line": 2, "outcome": "ok", "bytes": 11})
    );
    let path = "/workspace/new/deep/b";
    assert_eq!(
        events[17],
        json!({"operation": "write", "request_id": 8, "path": path, "outcome": "ok", "bytes": 11, "created": true, "atomic": true})
    );
    assert_eq!(
        events[21],
        json!({"operation": "write", "request_id": "é-1", "path": "/workspace/a", "outcome": "ok", "bytes": 1, "created": false, "atomic": true})
    );
    stack.settle().await;
}

#[tokio::test]
async fn what_is_no_text_file_of_the_agents_is_refused_and_nothing_is_written_outside() {
    let stack = start("").await;
    let id = launch(&stack).await;
    let workspace = stack.workspace();
    let outside = stack.path("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "s").unwrap();
    std::fs::create_dir(workspace.join("dir")).unwrap();
    std::fs::write(workspace.join("binary"), b"a\xff\xfe").unwrap();
    std::fs::write(workspace.join("ok"), "ok").unwrap();
    // As the container sees them.
    symlink("/etc/hosts", workspace.join("out")).unwrap();
    symlink("/etc", workspace.join("parent")).unwrap();
    symlink("/workspace/ok", workspace.join("in")).unwrap();
    symlink("../tmp-new", workspace.join("dangling")).unwrap();
    symlink("later", workspace.join("soon")).unwrap();
    symlink("loop", workspace.join("loop")).unwrap();
    let script = [
        "/fs-read in",
        "/fs-read out",
        "/fs-read parent/hosts",
        "/fs-read ../etc/hosts",
        "/fs-read dir/../../etc/hosts",
        "/fs-read /workspace2/x",
        "/fs-read missing",
        "/fs-read missing/deep",
        "/fs-read dir",
        "/fs-read /workspace/..",
        "/fs-read binary",
        "/fs-read loop",
        r#"/request fs/read_text_file {"path":"relative"}"#,
        r#"/request fs/read_text_file {"path":"/workspace/nul\u0000"}"#,
        r#"/request fs/read_text_file {"line":1}"#,
    ];
    let outside_words = "is outside of the directories that the agent may use through its client";
    let missing = |path: &str| format!("fs-read: error -32002 {path}: no such file or directory");
    let away = |path: &str| format!("fs-read: error -32002 {path}: {outside_words}");
    assert_eq!(
        said(&stack, &id, &script.join("\n")).await,
        [
            r#"fs-read: "ok""#.to_owned(),
            away("/workspace/out"),
            away("/workspace/parent/hosts"),
            away("/workspace/../etc/hosts"),
            away("/workspace/dir/../../etc/hosts"),
            missing("/workspace2/x"),
            missing("/workspace/missing"),
            missing("/workspace/missing/deep"),
            "fs-read: error -32602 /workspace/dir: is a directory".to_owned(),
            "fs-read: error -32602 /workspace/..: is a directory".to_owned(),
            "fs-read: error -32602 /workspace/binary: is not UTF-8 text".to_owned(),
            "fs-read: error -32602 /workspace/loop: too many levels of symbolic links".to_owned(),
            "request: error -32602 relative: the path must be absolute".to_owned(),
            "request: error -32602 /workspace/nul\0: the path has a NUL".to_owned(),
            "request: error -32602 params.path must be a string".to_owned(),
        ]
    );
    let script = [
        "/fs-write out x",
        "/fs-write parent/new x",
        "/fs-write ../etc/new x",
        "/fs-write dir/../../new/deep x",
        "/fs-write /workspace2/new x",
        "/fs-write /workspace-new x",
        "/fs-write dangling x",
        "/fs-write dir x",
        "/fs-write missing/../x x",
        "/fs-write in through",
        "/fs-write soon made",
    ];
    let away = |path: &str| format!("fs-write: error -32602 {path}: {outside_words}");
    assert_eq!(
        said(&stack, &id, &script.join("\n")).await,
        [
            away("/workspace/out"),
            away("/workspace/parent/new"),
            away("/workspace/../etc/new"),
            away("/workspace/dir/../../new/deep"),
            away("/workspace2/new"),
            away("/workspace-new"),
            away("/workspace/dangling"),
            "fs-write: error -32602 /workspace/dir: is a directory".to_owned(),
            "fs-write: error -32002 /workspace/missing/../x: no such file or directory".to_owned(),
            "fs-write: {}".to_owned(),
            "fs-write: {}".to_owned(),
        ]
    );
    assert_eq!(std::fs::read_to_string(workspace.join("ok")).unwrap(), "through");
    assert!(workspace.join("in").is_symlink() && workspace.join("soon").is_symlink());
    assert_eq!(std::fs::read_to_string(workspace.join("later")).unwrap(), "made");
    let looked = said(&stack, &id, "/ls /\n/ls /etc\n/ls /workspace").await;
    for name in ["new", "tmp-new", "workspace-new", "workspace2"] {
        assert!(
            !looked.join(" ").split(' ').any(|seen| seen == name),
            "{name}: {looked:?}"
        );
    }
    assert!(
        !looked[2].contains(".tmp") && !looked[2].contains("missing"),
        "{looked:?}"
    );
    let refused = told(&stack, &id, "fs").await;
    let last = refused.iter().rfind(|e| e["outcome"] == "error").unwrap();
    assert_eq!(last["error"]["data"]["reason"], "not_found");
    stack.settle().await;
}

#[tokio::test]
async fn a_write_keeps_owner_and_mode_and_is_one_step() {
    let stack = start("cap_add = ['CHOWN']").await;
    let id = launch(&stack).await;
    let workspace = stack.workspace();
    let path = |name: &str| workspace.join(name);
    for (name, owner, bits) in [("mine", 0, 0o600), ("script", 0, 0o4755), ("theirs", 1234, 0o666)] {
        std::fs::write(path(name), "old content").unwrap();
        std::os::unix::fs::chown(path(name), Some(owner), Some(owner)).unwrap();
        std::fs::set_permissions(path(name), std::fs::Permissions::from_mode(bits)).unwrap();
    }
    let before = std::fs::metadata(path("mine")).unwrap().ino();
    let open = std::fs::File::open(path("mine")).unwrap();
    let lines = said(
        &stack,
        &id,
        "/fs-write mine new\n/fs-write script new\n/fs-write theirs new",
    )
    .await;
    assert_eq!(lines, ["fs-write: {}"; 3]);
    assert_eq!(mode(&path("mine")), (0, 0, 0o600));
    assert_eq!(mode(&path("script")), (0, 0, 0o4755));
    assert_eq!(mode(&path("theirs")), (1234, 1234, 0o666));
    assert_ne!(std::fs::metadata(path("mine")).unwrap().ino(), before);
    // Who has it open has all of the old one.
    assert_eq!(std::io::read_to_string(open).unwrap(), "old content");
    let written = told(&stack, &id, "fs").await;
    assert!(
        written
            .iter()
            .filter(|e| e["outcome"] == "ok")
            .all(|e| e["atomic"] == true),
        "{written:#?}"
    );
    stack.settle().await;
}

#[tokio::test]
async fn a_user_of_its_own_writes_what_is_its_own() {
    let stack = start("user = '1234:1234'").await;
    let workspace = stack.workspace();
    std::os::unix::fs::chown(&workspace, Some(1234), Some(1234)).unwrap();
    let path = |name: &str| workspace.join(name);
    for (name, bits) in [("open", 0o666), ("closed", 0o644), ("hidden", 0o600)] {
        std::fs::write(path(name), "root's").unwrap();
        std::fs::set_permissions(path(name), std::fs::Permissions::from_mode(bits)).unwrap();
    }
    let id = launch(&stack).await;
    let script = "/whoami\n/fs-write new x\n/fs-write open x\n/fs-write closed x\n/fs-read hidden\n/term t /bin/sh -c id;\n/term-wait t";
    let lines = said(&stack, &id, script).await;
    assert!(lines[0].starts_with("whoami: uid=1234 gid=1234"), "{lines:?}");
    assert_eq!(
        lines[1..5],
        [
            "fs-write: {}",
            "fs-write: {}",
            "fs-write: error -32603 /workspace/closed: permission denied",
            "fs-read: error -32603 /workspace/hidden: permission denied",
        ]
    );
    assert_eq!(mode(&path("new")), (1234, 1234, 0o644));
    // It cannot be given to root again, so it is written where it is.
    assert_eq!(mode(&path("open")), (0, 0, 0o666));
    assert_eq!(std::fs::read_to_string(path("open")).unwrap(), "x");
    let written = told(&stack, &id, "fs").await;
    let atomic: Vec<_> = written
        .iter()
        .filter(|e| e["outcome"] == "ok")
        .map(|e| &e["atomic"])
        .collect();
    assert_eq!(atomic, [&json!(true), &json!(false)]);
    stack.settle().await;
}

#[tokio::test]
async fn a_type_says_what_its_agents_may_reach_and_what_a_missing_file_is() {
    let more = "[fs]\nroots = ['/workspace/src']\nmissing_reads_empty = true\nmax_file_bytes = 100\n";
    let stack = start(more).await;
    let id = launch(&stack).await;
    std::fs::create_dir(stack.workspace().join("src")).unwrap();
    std::fs::write(stack.workspace().join("src/large"), "0123456789\n".repeat(10)).unwrap();
    std::fs::write(stack.workspace().join("src2"), "x").unwrap();
    let script = [
        "/fs-read src/missing",
        "/fs-read src/no/such",
        "/fs-read src2",
        "/fs-read src/large",
        "/fs-read src/large 10 1",
        "/fs-read src/large 1 9",
        "/fs-read src/large 1 10",
        "/fs-fill src/full 100",
        "/fs-fill src/over 101",
    ];
    let lines = said(&stack, &id, &script.join("\n")).await;
    assert_eq!(lines[0..2], ["fs-read: \"\""; 2]);
    assert!(
        lines[2].starts_with("fs-read: error -32002 /workspace/src2: is outside"),
        "{lines:?}"
    );
    assert!(
        lines[3].starts_with("fs-read: error -32602 /workspace/src/large: has more than the 100 bytes"),
        "{lines:?}"
    );
    assert_eq!(lines[4], r#"fs-read: "0123456789\n""#);
    assert!(lines[5].starts_with(r#"fs-read: "0123"#), "{lines:?}");
    assert!(lines[6].starts_with("fs-read: error -32602"), "{lines:?}");
    assert_eq!(lines[7], "fs-write: {}".replace("write", "fill"));
    assert_eq!(
        lines[8],
        "fs-fill: error -32602 more than the 100 bytes that can be written at once"
    );
    assert!(!stack.workspace().join("src/over").exists());
    let events = told(&stack, &id, "fs").await;
    assert_eq!(events[1]["missing"], true, "{events:#?}");
    stack.settle().await;
}

#[tokio::test]
async fn a_root_that_cannot_be_written_to_has_a_place_for_the_helper() {
    let stack = start("read_only_root = true").await;
    let id = launch(&stack).await;
    let script = "/write /x no\n/fs-write a x\n/fs-read a\n/fs-write /bin/new x\n/term t echo hi\n/term-wait t\n/term-output t";
    let lines = said(&stack, &id, script).await;
    assert!(lines[0].contains("Read-only file system"), "{lines:?}");
    assert_eq!(lines[1..3], ["fs-write: {}", r#"fs-read: "x""#]);
    assert!(lines[3].starts_with("fs-write: error -32602"), "{lines:?}");
    assert_eq!(
        lines[5..],
        [
            "term-wait: code 0",
            r#"term-output: truncated=false code 0 "hi\n""#
        ]
    );
    stack.settle().await;
}

#[tokio::test]
async fn what_is_not_offered_is_not_there() {
    let off = boxed(
        "off",
        "[client_capabilities]\nterminal = false\nfs = {readTextFile = true, writeTextFile = false}\n",
    );
    let kandev = boxed("old", "protocol = 'kandev'\nenv = {MOCK_DIALECT = 'kandev'}\n");
    let stack = Stack::with_types(&[], &[("off", &off), ("old", &kandev)]).await;
    std::fs::write(stack.workspace().join("a"), "x").unwrap();
    let id = stack.launch(json!({"agent_type": "off"})).await;
    let lines = said(
        &stack,
        &id,
        "/client\n/fs-read a\n/fs-write a y\n/term t echo\n/term-output t",
    )
    .await;
    let client: serde_json::Value = serde_json::from_str(lines[0].strip_prefix("client: ").unwrap()).unwrap();
    assert_eq!(
        client["clientCapabilities"],
        json!({
            "fs": {"readTextFile": true, "writeTextFile": false}, "terminal": false,
            "elicitation": {"form": {}, "url": {}}, "session": {"configOptions": {"boolean": {}}},
        })
    );
    let refused = |name: &str| format!("{name}error -32601 Method not found");
    assert_eq!(
        lines[1..],
        [
            r#"fs-read: "x""#.to_owned(),
            refused("fs-write: "),
            refused("term: t "),
            refused("term-output: "),
        ]
    );
    assert_eq!(std::fs::read_to_string(stack.workspace().join("a")).unwrap(), "x");
    stack.stop(&id).await;
    let id = stack.launch(json!({"agent_type": "old"})).await;
    let turn = stack.turn(&id, "/fs-read a").await;
    assert_eq!(super::lines(&turn), [refused("fs-read: ")]);
    stack.settle().await;
}
