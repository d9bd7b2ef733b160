//! Several servers on one database and one engine: each instance has one owner, and each server serves all.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::recovery::{
    Moments, assert_five_whole, assert_whole, five_turns, launch, launch_with, turn_ended,
};
use crate::support::{Frame, Kandev, Stack};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// Two servers; the stack's calls go to one of them at a time.
struct Two {
    stack: Stack,
    other: Option<Kandev>,
    /// The data directories, in the order of `stack.kandev` and `other`.
    data: [&'static str; 2],
}

impl Two {
    /// With data directories of their own, as on two machines, so that only a lease tells that a server is gone.
    async fn apart(lease: &str) -> Self {
        Self::start(lease, ["data", "data-2"]).await
    }

    /// With one data directory.
    async fn together() -> Self {
        Self::start("5", ["data", "data"]).await
    }

    async fn start(lease: &str, data: [&'static str; 2]) -> Self {
        let environment = [("KANDEV_LEASE_SECONDS", lease), ("KANDEV_SECRET_KEY", KEY)];
        let stack = Stack::with(&environment).await;
        let other = Some(stack.another(data[1]).await);
        Self { stack, other, data }
    }

    /// From here on calls go to the other one.
    fn turn_around(&mut self) {
        std::mem::swap(&mut self.stack.kandev, &mut self.other);
        self.data.swap(0, 1);
    }

    /// `kill -9` of the one that is called; from here on the other is.
    async fn kill(&mut self) {
        self.stack.kill().await;
        self.turn_around();
    }

    /// Starts the one that is not called again.
    async fn revive(&mut self) {
        self.other = Some(self.stack.another(self.data[1]).await);
    }

    async fn server(&self, id: &str) -> Value {
        self.stack.instance(id).await["server"]["id"].clone()
    }

    /// Waits until another server than this holds the instance: how long that took.
    async fn taken_over(&self, id: &str, from: &Value) -> Duration {
        let started = Instant::now();
        let path = format!("/agents/{id}");
        let is_other = |i: &Value| i["server"]["id"].is_i64() && i["server"]["id"] != *from;
        self.stack.until(&path, is_other).await;
        started.elapsed()
    }
}

fn is_end(frame: &Frame) -> bool {
    frame.event == "turn_ended"
}

#[tokio::test]
async fn a_request_that_reaches_another_server_is_served_all_the_same() {
    let mut two = Two::apart("5").await;
    let id = launch_with(&two.stack, json!({"permission_policy": "ask"})).await;
    let owner = two.server(&id).await;
    two.turn_around();
    let stack = &two.stack;
    assert_eq!(two.server(&id).await, owner, "the other server says the same");

    let mut reader = stack.follow(&format!("/agents/{id}/events"), None).await;
    assert_eq!(
        stack.turn(&id, "/say through another").await["text"],
        "through another"
    );
    let frames = reader.until(is_end).await;
    assert_eq!(
        frames.iter().map(|f| f.id).collect::<Vec<_>>(),
        (1..=frames.len() as i64).collect::<Vec<_>>()
    );

    // Two prompts at once: their order is kept, and the second waits.
    let first = stack.prompt(&id, "/slow 600 50").await;
    let second = stack
        .post(
            &format!("/agents/{id}/prompt"),
            &json!({"message": "/say second"}),
        )
        .await
        .expect(202);
    assert_eq!(second["message"], "prompt queued");
    let busy = json!({"message": "/say third", "when_busy": "reject"});
    stack
        .post(&format!("/agents/{id}/prompt"), &busy)
        .await
        .refused(409, "conflict");
    let picture = json!([{"type": "image", "data": "AAAA", "mimeType": "image/png"}]);
    let refused = stack
        .post(&format!("/agents/{id}/prompt"), &json!({"prompt": picture}))
        .await;
    assert!([202, 400].contains(&refused.status.as_u16()), "{refused:?}");
    stack
        .post(&format!("/agents/{id}/cancel"), &json!({"reason": "from afar"}))
        .await
        .expect(200);
    let ended = turn_ended(stack, &id, &first).await;
    assert_eq!(
        (&ended["status"], &ended["cancel_reason"]),
        (&json!("cancelled"), &json!("from afar"))
    );
    let second = second["turn_id"].as_str().unwrap();
    assert_eq!(turn_ended(stack, &id, second).await["text"], "second");
    reader.until(is_end).await;

    // What the agent asks is answered from afar, once.
    let asking = stack.prompt(&id, "/permission keep").await;
    let open = format!("/agents/{id}/permissions?status=pending");
    let page = stack.until(&open, |page| page["total"] == 1).await;
    let asked = format!(
        "/agents/{id}/permissions/{}",
        page["permissions"][0]["id"].as_str().unwrap()
    );
    let none = json!({"option_id": "no such option"});
    stack.post(&asked, &none).await.refused(400, "validation_error");
    let allow = json!({"kind": "allow_once"});
    assert_eq!(stack.post(&asked, &allow).await.expect(200)["status"], "selected");
    stack.post(&asked, &allow).await.refused(409, "conflict");
    assert_eq!(turn_ended(stack, &id, &asking).await["status"], "completed");
    reader.until(is_end).await;

    // And what it asks people for.
    let asking = stack.prompt(&id, "/form").await;
    let open = format!("/agents/{id}/elicitations?status=pending");
    let page = stack.until(&open, |page| page["total"] == 1).await;
    let asked = format!(
        "/agents/{id}/elicitations/{}",
        page["elicitations"][0]["id"].as_str().unwrap()
    );
    let content = json!({"action": "accept", "content": {"name": "from afar"}});
    let wrong = json!({"action": "accept", "content": {}});
    stack.post(&asked, &wrong).await.refused(400, "validation_error");
    assert_eq!(
        stack.post(&asked, &content).await.expect(200)["status"],
        "accepted"
    );
    stack.post(&asked, &content).await.refused(409, "conflict");
    assert_eq!(
        turn_ended(stack, &id, &asking).await["text"],
        "form: accept {\"name\":\"from afar\"}\n"
    );
    reader.until(is_end).await;

    assert_whole(stack, &id).await;
    let stopped = stack.stop(&id).await;
    assert_eq!(stopped["status"], "stopped");
    assert!(stack.containers().is_empty());
    assert!(stack.instance(&id).await["server"].is_null());
    stack
        .post(&format!("/agents/{id}/prompt"), &json!({"message": "late"}))
        .await
        .refused(409, "conflict");
    let rest = reader.rest().await;
    assert_eq!(rest.last().unwrap().data["data"]["status"], "stopped");
    stack.settle().await;
}

/// The agent is asked by one server for another, and answers a third run.
#[tokio::test]
async fn a_session_has_one_instance_whichever_server_is_asked() {
    let two = Two::apart("5").await;
    let [own, other] = [&two.stack.kandev, &two.other].map(|server| server.as_ref().unwrap().url.clone());
    let id = launch(&two.stack).await;
    let session = two.stack.instance(&id).await["session_id"].clone();
    let body = json!({
        "agent_type": "mock-agent", "workspace_path": two.stack.workspace(), "session_id": session,
    });
    let http = reqwest::Client::new();
    let launch = async |address: &str| {
        let url = format!("{address}/api/v1/agents/launch");
        let response = http.post(url).json(&body).send().await.unwrap();
        let status = response.status().as_u16();
        (status, response.json::<Value>().await.unwrap())
    };
    let (status, refused) = launch(&other).await;
    assert_eq!((status, &refused["details"]["instance_id"]), (409, &json!(id)));
    two.stack
        .post(&format!("/agents/{id}/stop"), &json!({"force": true}))
        .await
        .expect(200);
    for _ in 0..4 {
        let (one, other) = tokio::join!(launch(&own), launch(&other));
        let (won, lost) = if one.0 == 201 { (one, other) } else { (other, one) };
        assert_eq!((won.0, lost.0), (201, 409), "{won:?} {lost:?}");
        assert_eq!(lost.1["details"]["instance_id"], won.1["id"]);
        let id = won.1["id"].as_str().unwrap();
        let stop = json!({"force": true});
        two.stack
            .post(&format!("/agents/{id}/stop"), &stop)
            .await
            .expect(200);
    }
    two.stack.settle().await;
}

#[tokio::test]
async fn what_was_asked_from_afar_is_answered_after_the_owners_death() {
    let mut two = Two::apart("2").await;
    let env = json!({"MOCK_SET": "slow:6000", "MOCK_INPUT_COPY": "/workspace/input"});
    let id = two.stack.launch(json!({"env": env})).await;
    let owner = two.server(&id).await;
    two.turn_around();
    let (stack, other) = (&two.stack, &mut two.other);
    let path = format!("/agents/{id}/mode");
    let body = json!({"mode_id": "code"});
    let asks = |text: &str| text.matches("session/set_mode").count();
    let input = stack.workspace().join("input");
    let (answer, ()) = tokio::join!(stack.call(reqwest::Method::PUT, &path, Some(&body)), async {
        while asks(&std::fs::read_to_string(&input).unwrap_or_default()) == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let pool = stack.database.pool().await;
        let left: String = sqlx::query_scalar("SELECT request FROM commands")
            .fetch_one(&pool)
            .await
            .unwrap();
        assert!(!left.contains("mode"), "what is asked may be secret: {left}");
        // A turn later, it is on record that the request was written.
        assert_eq!(stack.turn(&id, "/say beside").await["text"], "beside");
        drop(other.take());
    });
    assert_eq!(answer.expect(200)["result"], json!({}));
    assert_ne!(two.server(&id).await, owner);
    assert_eq!(
        asks(&std::fs::read_to_string(&input).unwrap()),
        1,
        "it was asked twice"
    );
    two.stack.settle().await;
}

#[tokio::test]
async fn the_owners_death_is_noticed_within_the_lease() {
    let mut two = Two::apart("2").await;
    let id = launch(&two.stack).await;
    let owner = two.server(&id).await;
    let turn = two.stack.prompt(&id, "/slow 60 100").await;
    two.kill().await;
    let took = two.taken_over(&id, &owner).await;
    // The lease, a beat of the other's, and what a busy machine adds.
    assert!(took < Duration::from_secs(10), "{took:?}");
    let ended = turn_ended(&two.stack, &id, &turn).await;
    assert_eq!(
        (&ended["status"], &ended["updates"]),
        (&json!("completed"), &json!(60))
    );
    assert_whole(&two.stack, &id).await;
    two.stack.settle().await;
}

#[tokio::test]
async fn a_server_beside_the_dead_one_need_not_wait_for_the_lease() {
    let mut two = Two::start("60", ["data", "data"]).await;
    let id = launch(&two.stack).await;
    let owner = two.server(&id).await;
    two.kill().await;
    let took = two.taken_over(&id, &owner).await;
    assert!(took < Duration::from_secs(30), "{took:?}");
    assert_eq!(two.stack.turn(&id, "/say on").await["text"], "on");
    two.stack.settle().await;
}

#[tokio::test]
async fn a_server_that_stood_still_writes_nothing_afterwards() {
    let mut two = Two::apart("2").await;
    let id = launch(&two.stack).await;
    let owner = two.server(&id).await;
    let turn = two
        .stack
        .prompt(&id, &"/flood 500 200\n/permission keep\n/sleep 100\n".repeat(80))
        .await;
    two.stack.kandev.as_ref().unwrap().signal(Signal::STOP);
    two.turn_around();
    // It is asked for before anybody knows that its owner stands still.
    let next = two.stack.prompt(&id, "/say next").await;
    two.taken_over(&id, &owner).await;
    let heir = two.server(&id).await;
    two.other.as_ref().unwrap().signal(Signal::CONT);
    let frozen = two.other.as_mut().unwrap();
    frozen.read_until("has ended this run").await;
    frozen.read_until("registered").await;
    assert_eq!(turn_ended(&two.stack, &id, &turn).await["status"], "completed");
    assert_eq!(turn_ended(&two.stack, &id, &next).await["text"], "next");
    assert_eq!(two.server(&id).await, heir);
    // It serves again, as another run.
    two.turn_around();
    assert_eq!(two.stack.turn(&id, "/say back").await["text"], "back");
    let own = launch(&two.stack).await;
    let new = two.server(&own).await;
    assert!(new != owner && new != heir, "{new}");
    assert_whole(&two.stack, &id).await;
    two.stack.settle().await;
}

#[tokio::test]
async fn a_server_that_is_asked_to_end_hands_its_instances_over() {
    let mut two = Two::apart("60").await;
    let mut instances = Vec::new();
    for script in ["/slow 80 100", "/flood 3000 200\n/slow 60 100", ""] {
        let id = launch(&two.stack).await;
        let turn = match script {
            "" => None,
            script => Some(two.stack.prompt(&id, script).await),
        };
        instances.push((id, turn));
    }
    let owner = two.server(&instances[0].0).await;
    let containers = two.stack.containers();
    // One after the other, as in a rolling restart.
    for _ in 0..2 {
        let leaving = two.stack.kandev.take().unwrap();
        assert!(leaving.terminate().await.success());
        two.turn_around();
        two.revive().await;
    }
    for (id, turn) in &instances {
        two.taken_over(id, &owner).await;
        if let Some(turn) = turn {
            assert_eq!(turn_ended(&two.stack, id, turn).await["status"], "completed");
        }
        assert_eq!(two.stack.turn(id, "/say on").await["text"], "on");
        assert_whole(&two.stack, id).await;
    }
    assert_eq!(two.stack.containers(), containers);
    two.stack.settle().await;
}

#[tokio::test]
async fn two_servers_and_twenty_kills_in_turn() {
    let mut two = Two::together().await;
    let turns = five_turns(&two.stack).await;
    let path = format!("/agents/{}/events", turns[1].0);
    let mut moments = Moments(2027);
    let mut seen = Vec::new();
    let mut takeovers = Vec::new();
    for _ in 0..20 {
        tokio::time::sleep(moments.next()).await;
        // A reader that changes servers with each kill.
        let last = seen.last().map(|frame: &Frame| frame.id);
        let mut reader = two.stack.follow(&path, last).await;
        let id = &turns[1].0;
        let owner = two.server(id).await;
        two.kill().await;
        seen.extend(reader.rest().await);
        takeovers.push(two.taken_over(id, &owner).await);
        two.revive().await;
    }
    println!("takeover: {takeovers:?}");
    assert_five_whole(&two.stack, &turns).await;
    let last = seen.last().map(|frame| frame.id);
    let mut reader = two.stack.follow(&path, last).await;
    two.stack.settle().await;
    seen.extend(reader.rest().await);
    let events = two.stack.events(&turns[1].0).await;
    assert_eq!(
        seen.iter().map(|f| f.id).collect::<Vec<_>>(),
        (1..=events.len() as i64).collect::<Vec<_>>()
    );
}
