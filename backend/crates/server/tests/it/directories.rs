//! Additional directories: mounted, told to agents that can take that, and in reach of their requests for files.

use serde_json::{Value, json};

use crate::support::{Stack, docker};

const TYPE: &str = "id = 'wide'\nname = 'x'\nimage = 'kandev/mock-agent:latest'\nadditional_directories = ['/sessions']\n\
    [env]\nMOCK_INPUT_COPY = '/workspace/input'\n\
    [[mounts]]\nsource = '{workspace}'\ntarget = '/workspace'\n\
    [[mounts]]\nsource = '{session_store}'\ntarget = '/sessions'\n";

/// The same with roots of the operator's.
fn narrow() -> String {
    TYPE.replace("'wide'", "'narrow'")
        .replace("[env]", "fs = { roots = ['/workspace'] }\n[env]")
}

async fn stack() -> Stack {
    let narrow = narrow();
    let stack = Stack::with_types(&[], &[("wide", TYPE), ("narrow", &narrow)]).await;
    for dir in ["more", "fixed"] {
        std::fs::create_dir(stack.path(dir)).unwrap();
        std::fs::write(stack.path(dir).join("a.txt"), "from outside").unwrap();
    }
    stack
}

fn directories(stack: &Stack) -> Value {
    json!([
        {"path": "/more", "source": stack.path("more")},
        {"path": "/fixed", "source": stack.path("fixed"), "read_only": true},
        "/workspace/sub",
    ])
}

const PATHS: [&str; 4] = ["/sessions", "/more", "/fixed", "/workspace/sub"];

async fn says(stack: &Stack, id: &str, directive: &str) -> String {
    stack.turn(id, directive).await["text"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn directories_are_mounted_and_the_agent_is_told() {
    let mut stack = stack().await;
    let launch = json!({"agent_type": "wide", "additional_directories": directories(&stack)});
    let launched = stack.try_launch(launch).await.expect(201);
    let id = launched["id"].as_str().unwrap().to_owned();
    assert_eq!(
        stack.sent_to("session/new")[0]["additionalDirectories"],
        json!(PATHS)
    );
    let told: Vec<Value> = PATHS
        .iter()
        .map(|path| json!({"path": path, "status": "handed"}))
        .collect();
    assert_eq!(launched["additional_directories"], json!(told));
    let session = stack.get(&format!("/agents/{id}/session")).await.expect(200);
    assert_eq!(session["additional_directories"], json!(told));
    // Its requests for files reach them, as far as the mounts allow.
    assert_eq!(
        says(&stack, &id, "/fs-read /more/a.txt").await,
        "fs-read: \"from outside\"\n"
    );
    assert_eq!(
        says(&stack, &id, "/fs-read /fixed/a.txt").await,
        "fs-read: \"from outside\"\n"
    );
    assert_eq!(
        says(&stack, &id, "/fs-write /more/b.txt new").await,
        "fs-write: {}\n"
    );
    assert_eq!(
        std::fs::read_to_string(stack.path("more").join("b.txt")).unwrap(),
        "new"
    );
    assert!(
        says(&stack, &id, "/fs-write /fixed/a.txt new")
            .await
            .contains("error")
    );
    let outside = says(&stack, &id, "/fs-read /etc/passwd").await;
    assert!(outside.contains("error -32002"), "{outside}");
    // A branch has them too, and so has a server that takes the instance up.
    stack.kill().await;
    stack.boot().await;
    assert_eq!(
        says(&stack, &id, "/fs-read /more/a.txt").await,
        "fs-read: \"from outside\"\n"
    );
    stack
        .post(&format!("/agents/{id}/fork"), &json!({}))
        .await
        .expect(201);
    assert_eq!(
        stack.sent_to("session/fork")[0]["additionalDirectories"],
        json!(PATHS)
    );
    stack.stop(&id).await;
    // And a resume, in either way.
    for (method, env) in [
        ("session/resume", json!({})),
        ("session/load", json!({"MOCK_WITHOUT": "resume"})),
    ] {
        let body = json!({"wait": "ready", "env": env});
        let resumed = stack
            .post(&format!("/agents/{id}/resume"), &body)
            .await
            .expect(201);
        assert_eq!(
            stack.sent_to(method)[0]["additionalDirectories"],
            json!(PATHS),
            "{method}"
        );
        let resumed = resumed["id"].as_str().unwrap();
        assert_eq!(
            says(&stack, resumed, "/fs-read /more/a.txt").await,
            "fs-read: \"from outside\"\n"
        );
        stack.stop(resumed).await;
    }
    stack.settle().await;
}

#[tokio::test]
async fn an_agent_that_takes_none_is_told_of_none() {
    let stack = stack().await;
    let env = json!({"MOCK_WITHOUT": "additionalDirectories"});
    let launch = json!({"agent_type": "narrow", "env": env, "additional_directories": directories(&stack)});
    let launched = stack.try_launch(launch).await.expect(201);
    let id = launched["id"].as_str().unwrap();
    assert!(
        stack.sent_to("session/new")[0]
            .get("additionalDirectories")
            .is_none()
    );
    for (told, path) in launched["additional_directories"]
        .as_array()
        .unwrap()
        .iter()
        .zip(PATHS)
    {
        assert_eq!(
            (&told["path"], &told["status"]),
            (&json!(path), &json!("skipped"))
        );
        assert!(
            told["reason"]
                .as_str()
                .unwrap()
                .contains("additional directories")
        );
    }
    let logs = stack.logs(id, "system").await;
    assert_eq!(
        logs.iter()
            .filter(|line| line.contains("is not told of the directory"))
            .count(),
        4
    );
    // They are mounted all the same; roots that the operator has set stay as they are.
    assert_eq!(
        says(&stack, id, "/read /more/a.txt").await,
        "read: from outside\n"
    );
    assert!(
        says(&stack, id, "/fs-read /more/a.txt")
            .await
            .contains("error -32002")
    );
    let container = stack.containers().pop().unwrap();
    let mounts = docker(&["inspect", "-f", "{{json .Mounts}}", &container]).join("");
    let mounts: Value = serde_json::from_str(&mounts).unwrap();
    let fixed = mounts
        .as_array()
        .unwrap()
        .iter()
        .find(|m| m["Destination"] == "/fixed")
        .unwrap();
    assert_eq!(fixed["RW"], false);
    stack.settle().await;
}
