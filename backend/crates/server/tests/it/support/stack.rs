//! The whole service: the binary, a database of its own, a real engine, a deployment name of its own.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use kandev_domain::InstanceId;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{Cluster, Engine, Kandev, Reader, TestDatabase};

/// Generous: the engine shares two cores with other tests.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);

/// How the mock agent ends where it is sent a frame that is not of the protocol, and what it says then.
pub(crate) const FAULT_EXIT_CODE: i64 = 97;
pub(crate) const FAULT: &str = "not of the official schema: ";

/// What neither a cancel nor SIGTERM ends.
pub(crate) const DEAF: &str = "/ignore-cancel\n/ignore-term\n/say deaf\n/sleep 60000";

/// A running service of one test. When dropped, its containers, volumes and database go too.
pub(crate) struct Stack {
    pub(crate) kandev: Option<Kandev>,
    pub(crate) database: TestDatabase,
    /// Its server, if that is the test's own. Dropped after the database.
    pub(crate) cluster: Option<Cluster>,
    /// The engine, if that is the test's own.
    pub(crate) engine: Option<Engine>,
    pub(crate) owner: String,
    environment: Vec<(String, String)>,
    dir: tempfile::TempDir,
    http: reqwest::Client,
}

/// What a request was answered.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
}

impl Answer {
    /// The body, if the status is as expected.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{:#}", self.body);
        self.body
    }

    /// The body of an error, if status and code are as expected.
    #[track_caller]
    pub(crate) fn refused(self, status: u16, code: &str) -> Value {
        assert_eq!(
            (self.status.as_u16(), self.body["error"].as_str()),
            (status, Some(code)),
            "{:#}",
            self.body
        );
        assert_eq!(self.body["http_status"], status);
        assert!(
            self.body["message"].is_string() && self.body["request_id"].is_string(),
            "{:#}",
            self.body
        );
        self.body
    }
}

impl Stack {
    pub(crate) async fn start() -> Self {
        Self::with(&[]).await
    }

    /// With more of an environment, such as `KANDEV_CANCEL_GRACE_SECONDS`.
    pub(crate) async fn with(environment: &[(&str, &str)]) -> Self {
        Self::with_types(environment, &[]).await
    }

    /// With entries of the catalogue, as id and TOML, besides.
    pub(crate) async fn with_types(environment: &[(&str, &str)], types: &[(&str, &str)]) -> Self {
        Self::with_parts(environment, types, None, None).await
    }

    /// With a container engine of its own.
    pub(crate) async fn on_engine(engine: Engine) -> Self {
        Self::with_parts(&[], &[], None, Some(engine)).await
    }

    /// With all of it its own.
    #[cfg(feature = "soak")]
    pub(crate) async fn on_both(cluster: Cluster, engine: Engine) -> Self {
        Self::with_parts(&[], &[], Some(cluster), Some(engine)).await
    }

    /// With a PostgreSQL server of its own.
    pub(crate) async fn on(cluster: Cluster, environment: &[(&str, &str)]) -> Self {
        Self::with_parts(environment, &[], Some(cluster), None).await
    }

    async fn with_parts(
        environment: &[(&str, &str)],
        types: &[(&str, &str)],
        cluster: Option<Cluster>,
        engine: Option<Engine>,
    ) -> Self {
        let database = match &cluster {
            Some(cluster) => TestDatabase::create_on(cluster.url()).await,
            None => TestDatabase::create().await,
        };
        let dir = super::passable_dir();
        for sub in ["data", "workspace", "agents"] {
            std::fs::create_dir(dir.path().join(sub)).unwrap();
        }
        let owner = format!("test-{}", InstanceId::generate());
        let path = |sub: &str| dir.path().join(sub).to_str().unwrap().to_owned();
        let mut all = vec![
            ("DATABASE_URL".to_owned(), database.url().to_owned()),
            ("KANDEV_OWNER".to_owned(), owner.clone()),
            ("KANDEV_WORKSPACE_ROOTS".to_owned(), path("")),
            ("KANDEV_AGENTS_DIR".to_owned(), path("agents")),
        ];
        let host = engine.as_ref().map(Engine::host);
        if let Some(host) = host.or_else(|| std::env::var("DOCKER_HOST").ok()) {
            all.push(("DOCKER_HOST".to_owned(), host));
        }
        all.extend(
            environment
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned())),
        );
        let mut stack = Self {
            kandev: None,
            database,
            cluster,
            engine,
            owner,
            environment: all,
            dir,
            http: reqwest::Client::new(),
        };
        for (id, toml) in types {
            stack.write_agent_type(id, toml);
        }
        stack.boot().await;
        stack
    }

    /// Starts the server, again if it was killed or terminated.
    pub(crate) async fn boot(&mut self) {
        self.kandev = Some(self.another("data").await);
    }

    /// Starts another server of the same deployment, with a data directory of this name.
    pub(crate) async fn another(&self, data: &str) -> Kandev {
        let environment: Vec<_> = self
            .environment
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        Kandev::serve(&self.dir.path().join(data), &environment).await
    }

    /// `kill -9`.
    pub(crate) async fn kill(&mut self) {
        let mut kandev = self.kandev.take().unwrap();
        kandev.signal(rustix::process::Signal::KILL);
        kandev.ended().await;
    }

    /// Writes a catalogue entry; it counts from the next [`boot`](Self::boot) on.
    pub(crate) fn write_agent_type(&self, id: &str, toml: &str) {
        std::fs::write(self.dir.path().join("agents").join(format!("{id}.toml")), toml).unwrap();
    }

    /// The workspace, made empty for the test.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.dir.path().join("workspace")
    }

    /// What the mock agent was sent so far, with `MOCK_INPUT_COPY` at `/workspace/input`.
    pub(crate) fn sent(&self) -> Vec<Value> {
        let input = std::fs::read_to_string(self.workspace().join("input")).unwrap();
        let frame = |line: &str| serde_json::from_str(line).unwrap();
        input.lines().map(frame).collect()
    }

    /// The parameters of the requests of this method among them, in order.
    pub(crate) fn sent_to(&self, method: &str) -> Vec<Value> {
        let sent = self.sent();
        let of_it = sent.iter().filter(|frame| frame["method"] == method);
        of_it.map(|frame| frame["params"].clone()).collect()
    }

    /// A path of the test's own directory.
    pub(crate) fn path(&self, sub: &str) -> PathBuf {
        self.dir.path().join(sub)
    }

    pub(crate) fn url(&self, path: &str) -> String {
        let base = &self.kandev.as_ref().unwrap().url;
        let in_api = [
            "/agents",
            "/elicitations",
            "/events",
            "/permissions",
            "/sessions",
            "/tasks",
            "/uploads",
        ];
        if in_api.iter().any(|start| path.starts_with(start)) {
            format!("{base}/api/v1{path}")
        } else {
            format!("{base}{path}")
        }
    }

    pub(crate) async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Answer {
        let mut request = self.http.request(method, self.url(path)).timeout(LIMIT * 2);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.unwrap();
        let status = response.status();
        let text = response.text().await.unwrap();
        Answer {
            status,
            body: serde_json::from_str(&text).unwrap_or(Value::Null),
        }
    }

    /// Begins a stream of server-sent events, after `Last-Event-ID` if given. It must not be refused.
    pub(crate) async fn follow(&self, path: &str, last: Option<i64>) -> Reader {
        self.follow_from(path, last.map(|last| last.to_string()).as_deref())
            .await
    }

    /// The same with any kind of id.
    pub(crate) async fn follow_from(&self, path: &str, last: Option<&str>) -> Reader {
        let response = self.try_follow_from(path, last).await;
        assert_eq!(response.status(), 200, "{path}");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Reader::new(response)
    }

    pub(crate) async fn try_follow(&self, path: &str, last: Option<i64>) -> reqwest::Response {
        self.try_follow_from(path, last.map(|last| last.to_string()).as_deref())
            .await
    }

    pub(crate) async fn try_follow_from(&self, path: &str, last: Option<&str>) -> reqwest::Response {
        let request = self
            .http
            .get(self.url(path))
            .header("accept", "text/event-stream");
        let request = match last {
            Some(last) => request.header("last-event-id", last),
            None => request,
        };
        request.send().await.unwrap()
    }

    /// Waits until everything that it needs answers.
    pub(crate) async fn until_ready(&self) {
        let deadline = Instant::now() + LIMIT;
        while self.get("/ready").await.status != 200 {
            assert!(Instant::now() < deadline, "it does not become ready");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        self.cluster.as_ref().unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.call(Method::POST, path, Some(body)).await
    }

    /// Launches; what `with` does not say is: the mock agent, the workspace, `allow`, answered when ready.
    pub(crate) async fn try_launch(&self, with: Value) -> Answer {
        let mut body = json!({
            "agent_type": "mock-agent", "workspace_path": self.workspace(), "permission_policy": "allow", "wait": "ready",
        });
        for (key, value) in with.as_object().unwrap() {
            body[key] = value.clone();
        }
        self.post("/agents/launch", &body).await
    }

    /// The same, and it must work: the instance's id.
    #[track_caller]
    pub(crate) fn launch(&self, with: Value) -> impl Future<Output = String> {
        let caller = std::panic::Location::caller();
        async move {
            let answer = self.try_launch(with).await;
            assert_eq!(answer.status, 201, "{caller}: {:#}", answer.body);
            assert!(answer.body["error"].is_null(), "{caller}: {:#}", answer.body);
            answer.body["id"].as_str().unwrap().to_owned()
        }
    }

    /// Prompts and waits for the turn's end: the turn.
    pub(crate) async fn turn(&self, id: &str, message: &str) -> Value {
        let body = json!({"message": message, "wait": true});
        self.post(&format!("/agents/{id}/prompt"), &body)
            .await
            .expect(200)["turn"]
            .clone()
    }

    /// Prompts without waiting: the turn's id.
    pub(crate) async fn prompt(&self, id: &str, message: &str) -> String {
        let body = json!({"message": message});
        let answer = self
            .post(&format!("/agents/{id}/prompt"), &body)
            .await
            .expect(202);
        answer["turn_id"].as_str().unwrap().to_owned()
    }

    /// A turn that neither a cancel nor SIGTERM ends: its id, once it runs.
    pub(crate) async fn deaf_turn(&self, id: &str) -> String {
        let turn = self.prompt(id, DEAF).await;
        let path = format!("/agents/{id}/turns/{turn}");
        self.until(&path, |t| t["text"] == "deaf").await;
        turn
    }

    /// Cancels what runs.
    pub(crate) async fn cancel(&self, id: &str) {
        let path = format!("/agents/{id}/cancel");
        self.post(&path, &json!({})).await.expect(200);
    }

    /// Stops it, as gently as can be: what the caller is told.
    pub(crate) async fn stop(&self, id: &str) -> Value {
        let path = format!("/agents/{id}/stop");
        self.post(&path, &json!({})).await.expect(200)
    }

    /// Goes on with the session of one that has ended: the new instance, which runs.
    pub(crate) async fn resume(&self, id: &str) -> Value {
        let path = format!("/agents/{id}/resume");
        let resumed = self.post(&path, &json!({"wait": "ready"})).await.expect(201);
        assert_eq!(resumed["status"], "running", "{resumed:#}");
        resumed
    }

    pub(crate) async fn instance(&self, id: &str) -> Value {
        self.get(&format!("/agents/{id}")).await.expect(200)
    }

    /// Every event, in order.
    pub(crate) async fn events(&self, id: &str) -> Vec<Value> {
        let mut events = Vec::new();
        let mut after = "0".to_owned();
        loop {
            let page = self
                .get(&format!("/agents/{id}/events?limit=5000&after={after}"))
                .await
                .expect(200);
            events.extend(page["events"].as_array().unwrap().iter().cloned());
            match page["next_cursor"].as_str() {
                Some(next) => next.clone_into(&mut after),
                None => return events,
            }
        }
    }

    /// Stops what still runs, and checks what must hold of every instance there was: a history without gap from 1 that
    /// ends with the final status, turns that all have exactly one end, no container, and no agent that found a frame
    /// which is not of the protocol.
    #[track_caller]
    pub(crate) fn settle(&self) -> impl Future<Output = ()> {
        self.settle_but(&[])
    }

    /// The same, where these instances were sent such a frame on purpose.
    #[track_caller]
    pub(crate) fn settle_but(&self, faulty: &[&str]) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let list = self.get("/agents?limit=500").await.expect(200);
            for instance in list["agents"].as_array().unwrap() {
                let id = instance["id"].as_str().unwrap();
                self.post(&format!("/agents/{id}/stop"), &json!({"force": true}))
                    .await
                    .expect(200);
                let events = self.events(id).await;
                let seqs: Vec<_> = events.iter().map(|e| e["seq"].as_u64().unwrap()).collect();
                assert_eq!(
                    seqs,
                    (1..=events.len() as u64).collect::<Vec<_>>(),
                    "{caller}: {id}"
                );
                let instance = self.instance(id).await;
                let status = &instance["status"];
                if !faulty.contains(&id) {
                    self.assert_no_fault(&instance, caller).await;
                }
                let last = events.iter().rfind(|e| e["kind"] == "status").unwrap();
                assert_eq!(last["data"]["status"], *status, "{caller}: {id}");
                let turns = self
                    .get(&format!("/agents/{id}/turns?limit=500"))
                    .await
                    .expect(200);
                for turn in turns["turns"].as_array().unwrap() {
                    let ended = |e: &&Value| e["kind"] == "turn_ended" && e["turn_id"] == turn["id"];
                    let ends: Vec<_> = events
                        .iter()
                        .filter(ended)
                        .map(|e| &e["data"]["status"])
                        .collect();
                    assert_eq!(ends, [&turn["status"]], "{caller}: {id} {turn:#}");
                }
            }
            assert!(self.containers().is_empty(), "{caller}: a container is left");
        }
    }

    /// The mock agent exits with a code of its own, after a line on stderr, on a frame that it should not be sent. An
    /// instance may have had several containers, so the line counts as well.
    async fn assert_no_fault(&self, instance: &Value, caller: &std::panic::Location<'_>) {
        let id = instance["id"].as_str().unwrap();
        let stderr = self.logs(id, "stderr").await;
        let told = stderr.iter().any(|line| line.starts_with(FAULT));
        assert!(
            !told && instance["exit_code"] != FAULT_EXIT_CODE,
            "{caller}: {id} was sent what is not of the protocol: {stderr:#?}"
        );
    }

    /// Log messages of the given streams (`stdout,stderr`), in order.
    pub(crate) async fn logs(&self, id: &str, streams: &str) -> Vec<String> {
        let page = self
            .get(&format!("/agents/{id}/logs?tail=10000&stream={streams}"))
            .await
            .expect(200);
        page["logs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|l| l["message"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Asks until the answer holds: for what has no `wait` of its own.
    #[track_caller]
    pub(crate) fn until<'a>(
        &'a self,
        path: &'a str,
        holds: impl Fn(&Value) -> bool + 'a,
    ) -> impl Future<Output = Value> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let deadline = Instant::now() + LIMIT;
            loop {
                let body = self.get(path).await.expect(200);
                if holds(&body) {
                    return body;
                }
                assert!(Instant::now() < deadline, "{caller}: {path} stays {body:#}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Waits for the instance's end: the instance.
    #[track_caller]
    pub(crate) fn ended<'a>(&'a self, id: &'a str) -> impl Future<Output = Value> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let path = format!("/agents/{id}");
            let over =
                |i: &Value| ["completed", "failed", "stopped"].contains(&i["status"].as_str().unwrap());
            let deadline = Instant::now() + LIMIT;
            loop {
                let instance = self.get(&path).await.expect(200);
                if over(&instance) {
                    return instance;
                }
                assert!(
                    Instant::now() < deadline,
                    "{caller}: it does not end: {instance:#}"
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Waits until an instance's container has ended: while there is no server, only the engine knows.
    pub(crate) async fn until_exited(&self, id: &str) {
        let label = format!("label=kandev.instance_id={id}");
        let deadline = Instant::now() + LIMIT;
        while !self.docker(&["ps", "-q", "--filter", &label]).is_empty() {
            assert!(Instant::now() < deadline, "{id} runs on");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until this file is in the workspace: what an agent has come to while there is no server.
    pub(crate) async fn until_there(&self, file: &str) {
        let path = self.workspace().join(file);
        let deadline = Instant::now() + LIMIT;
        while !path.exists() {
            assert!(Instant::now() < deadline, "{file} is not written");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The ids of this deployment's containers, ended ones too.
    pub(crate) fn containers(&self) -> Vec<String> {
        self.docker(&[
            "ps",
            "-aq",
            "--no-trunc",
            "--filter",
            &format!("label=kandev.owner={}", self.owner),
        ])
    }

    /// Runs the client of this service's engine: its output's lines.
    fn docker(&self, args: &[&str]) -> Vec<String> {
        match &self.engine {
            Some(engine) => lines_of(engine.docker().args(args)),
            None => docker(args),
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        drop(self.kandev.take());
        let label = format!("label=kandev.owner={}", self.owner);
        for container in self.containers() {
            self.docker(&["rm", "-f", "-v", &container]);
        }
        for volume in self.docker(&["volume", "ls", "-q", "--filter", &label]) {
            self.docker(&["volume", "rm", "-f", &volume]);
        }
    }
}

/// Runs the engine's own client: its output's lines.
pub(crate) fn docker(args: &[&str]) -> Vec<String> {
    lines_of(Command::new("docker").args(args))
}

fn lines_of(command: &mut Command) -> Vec<String> {
    let output = command.output().unwrap();
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect()
}
