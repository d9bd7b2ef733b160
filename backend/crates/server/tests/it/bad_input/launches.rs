//! Launches that cannot be.

use serde_json::{Value, json};

use super::{counts, names};
use crate::support::Stack;

const TYPES: &[(&str, &str)] = &[(
    "off",
    "id = 'off'\nname = 'x'\nimage = 'kandev/mock-agent:latest'\nenabled = false\n",
)];

#[tokio::test]
async fn are_refused_by_the_field() {
    let stack = Stack::with_types(&[], TYPES).await;
    std::fs::write(stack.path("file"), "").unwrap();
    let outside = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(outside.path(), stack.path("escape")).unwrap();
    std::os::unix::fs::symlink("/etc", stack.path("etc")).unwrap();
    std::os::unix::fs::symlink("loop", stack.path("loop")).unwrap();
    let long = "x".repeat(128 * 1024 + 1);
    let cases: Vec<(&str, Value)> = vec![
        ("agent_type", json!({"agent_type": "no-such-type"})),
        ("agent_type", json!({"agent_type": "off"})),
        ("agent_type", json!({"agent_type": ""})),
        ("agent_type", json!({"agent_type": "../mock-agent"})),
        ("agent_type", json!({"agent_type": "mock-agent\u{0}"})),
        ("agent_type", json!({"agent_type": null})),
        ("agent_type", json!({"agent_type": 7})),
        ("workspace_path", json!({"workspace_path": null})),
        ("workspace_path", json!({"workspace_path": ""})),
        ("workspace_path", json!({"workspace_path": "workspace"})),
        ("workspace_path", json!({"workspace_path": "./workspace"})),
        ("workspace_path", json!({"workspace_path": "~/workspace"})),
        ("workspace_path", json!({"workspace_path": stack.path("missing")})),
        ("workspace_path", json!({"workspace_path": stack.path("file")})),
        (
            "workspace_path",
            json!({"workspace_path": stack.path("file/below")}),
        ),
        ("workspace_path", json!({"workspace_path": stack.path("loop")})),
        ("workspace_path", json!({"workspace_path": stack.path("escape")})),
        (
            "workspace_path",
            json!({"workspace_path": stack.path("workspace/../escape")}),
        ),
        (
            "workspace_path",
            json!({"workspace_path": stack.path("workspace/../..")}),
        ),
        ("workspace_path", json!({"workspace_path": outside.path()})),
        ("workspace_path", json!({"workspace_path": stack.path("etc")})),
        ("workspace_path", json!({"workspace_path": stack.path("data")})),
        ("workspace_path", json!({"workspace_path": stack.path("")})),
        ("workspace_path", json!({"workspace_path": "/"})),
        ("workspace_path", json!({"workspace_path": "/etc"})),
        ("workspace_path", json!({"workspace_path": "/proc/self"})),
        (
            "workspace_path",
            json!({"workspace_path": "/var/run/docker.sock"}),
        ),
        (
            "workspace_path",
            json!({"workspace_path": format!("{}\u{0}", stack.workspace().display())}),
        ),
        (
            "workspace_path",
            json!({"workspace_path": format!("/{}", "x".repeat(5000))}),
        ),
        ("task_id", json!({"task_id": "a b"})),
        ("task_id", json!({"task_id": "a/b"})),
        ("task_id", json!({"task_id": "x".repeat(129)})),
        ("task_id", json!({"task_id": "nul\u{0}"})),
        ("task_id", json!({"task_id": 5})),
        ("env", json!({"env": {"1A": "x"}})),
        ("env", json!({"env": {"A-B": "x"}})),
        ("env", json!({"env": {"A=B": "x"}})),
        ("env", json!({"env": {"": "x"}})),
        ("env", json!({"env": {"A\u{0}": "x"}})),
        ("env", json!({"env": {"A": "x\u{0}y"}})),
        ("env", json!({"env": {"A": long}})),
        ("env", json!({"env": {"A": 7}})),
        ("env", json!({"env": ["A=7"]})),
        ("priority", json!({"priority": "high"})),
        ("priority", json!({"priority": 1.5})),
        ("priority", json!({"priority": 3_000_000_000_u64})),
        ("metadata", json!({"metadata": {"a": "\u{0}"}})),
        ("metadata", json!({"metadata": {"a\u{0}": 1}})),
        ("metadata", json!({"metadata": {"a": [{"b": "x\u{0}"}]}})),
        ("metadata", json!({"metadata": []})),
        ("prompt", json!({"prompt": ""})),
        ("prompt", json!({"prompt": " \n\t"})),
        ("prompt", json!({"prompt": []})),
        ("prompt", json!({"prompt": [{"type": "text", "text": " "}]})),
        ("prompt", json!({"prompt": [{"type": "video", "data": "x"}]})),
        ("prompt", json!({"prompt": [{"type": "image", "data": "x"}]})),
        ("prompt", json!({"prompt": [{"text": "x"}]})),
        ("prompt", json!({"prompt": ["x"]})),
        ("prompt", json!({"prompt": 7})),
        ("prompt", json!({"prompt": {"type": "text", "text": "x"}})),
        ("session_id", json!({"session_id": ""})),
        ("session_id", json!({"session_id": "a\u{0}b"})),
        ("session_id", json!({"session_id": "x".repeat(1025)})),
        ("mcp_servers", json!({"mcp_servers": [{}]})),
        ("mcp_servers", json!({"mcp_servers": ["x"]})),
        ("mcp_servers", json!({"mcp_servers": {"name": "x"}})),
        ("mcp_servers[0]", json!({"mcp_servers": [{"name": "x"}]})),
        (
            "mcp_servers[1].type",
            json!({"mcp_servers": [{"name": "x", "command": "x"}, {"name": "y", "type": "pipe"}]}),
        ),
        (
            "mcp_servers[0].args",
            json!({"mcp_servers": [{"name": "x", "command": "x", "args": "-v"}]}),
        ),
        (
            "mcp_servers[0]",
            json!({"mcp_servers": [{"name": "x", "type": "http", "url": "file:///x"}]}),
        ),
        (
            "mcp_servers",
            json!({"mcp_servers": [{"name": "x", "command": "x"}, {"name": "x", "command": "y"}]}),
        ),
        (
            "additional_directories",
            json!({"additional_directories": "/more"}),
        ),
        (
            "additional_directories[0]",
            json!({"additional_directories": [7]}),
        ),
        (
            "additional_directories[1].path",
            json!({"additional_directories": ["/more", {"source": "/x"}]}),
        ),
        (
            "additional_directories",
            json!({"additional_directories": ["relative"]}),
        ),
        (
            "additional_directories",
            json!({"additional_directories": ["/a/../etc"]}),
        ),
        ("additional_directories", json!({"additional_directories": ["/"]})),
        (
            "additional_directories",
            json!({"additional_directories": ["/a", "/a"]}),
        ),
        (
            "additional_directories",
            json!({"additional_directories": [{"path": "/more", "source": "/etc"}]}),
        ),
        (
            "additional_directories",
            json!({"additional_directories": [{"path": "/more", "source": outside.path()}]}),
        ),
        (
            "additional_directories",
            json!({"additional_directories": [{"path": "/more", "source": stack.path("escape")}]}),
        ),
        (
            "additional_directories",
            json!({"additional_directories": [{"path": "/workspace/x", "source": stack.workspace()}]}),
        ),
        (
            "additional_directories",
            json!({"additional_directories": [{"path": "/etc", "source": stack.workspace()}]}),
        ),
        ("mode", json!({"mode": 7})),
        ("config_options", json!({"config_options": []})),
        ("session_params", json!({"session_params": []})),
        ("session_params", json!({"session_params": {"cwd": "/"}})),
        ("permission_policy", json!({"permission_policy": "perhaps"})),
        ("permission_policy", json!({"permission_policy": 5})),
        ("permission_policy", json!({"permission_policy": {"read": 5}})),
        ("permission_default", json!({"permission_default": 5})),
        ("elicitation_default", json!({"elicitation_default": []})),
        ("lifecycle", json!({"lifecycle": "forever"})),
        ("lifecycle", json!({"lifecycle": 5})),
        ("lifecycle", json!({"lifecycle": {"one_shot": 5}})),
        ("on_lost", json!({"on_lost": "cry"})),
        ("on_lost", json!({"on_lost": true})),
        ("wait", json!({"wait": "long"})),
        ("wait", json!({"wait": {}})),
        ("resources.memory_mb", json!({"resources": {"memory_mb": 0}})),
        ("resources.memory_mb", json!({"resources": {"memory_mb": 5}})),
        ("resources.memory_mb", json!({"resources": {"memory_mb": -1}})),
        (
            "resources.memory_mb",
            json!({"resources": {"memory_mb": u64::MAX}}),
        ),
        ("resources.cpu_cores", json!({"resources": {"cpu_cores": 0}})),
        ("resources.cpu_cores", json!({"resources": {"cpu_cores": 1e9}})),
        ("resources.pids_limit", json!({"resources": {"pids_limit": 0}})),
        ("resources", json!({"resources": "big"})),
        ("timeout_seconds", json!({"timeout_seconds": 0})),
        ("timeout_seconds", json!({"timeout_seconds": -5})),
        (
            "timeout_seconds",
            json!({"timeout_seconds": 1_000_000_000_000_u64}),
        ),
        ("idle_timeout_seconds", json!({"idle_timeout_seconds": 0})),
    ];
    for (field, case) in cases {
        names(stack.try_launch(case.clone()).await, field, &case);
    }
    for env in [
        json!({}),
        json!({"AUGMENT_SESSION_AUTH": ""}),
        json!({"AUGGIE_SESSION_ID": "x"}),
    ] {
        let case = json!({"agent_type": "augment-agent", "env": env});
        let body = names(stack.try_launch(case.clone()).await, "env", &case);
        assert_eq!(
            body["details"]["missing"],
            json!(["AUGMENT_SESSION_AUTH"]),
            "{body:#}"
        );
        assert!(
            body["message"].as_str().unwrap().contains("AUGMENT_SESSION_AUTH"),
            "{body:#}"
        );
    }
    for field in ["agent_type", "workspace_path"] {
        let mut body = json!({"agent_type": "mock-agent", "workspace_path": stack.workspace()});
        body.as_object_mut().unwrap().remove(field);
        names(stack.post("/agents/launch", &body).await, field, &body);
    }
    // What there is to choose from is said, whatever came in its place.
    for wait in [json!("long"), json!(5), json!({})] {
        let case = json!({"wait": wait});
        let body = names(stack.try_launch(case.clone()).await, "wait", &case);
        assert_eq!(body["message"], "wait: must be one of `none`, `ready`, `turn`");
    }
    assert_eq!(counts(&stack).await, (vec![0, 0, 0, 0], vec![]));
    stack.settle().await;
}
