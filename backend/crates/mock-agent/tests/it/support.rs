//! A client at the other end of the agent's pipes.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use agent_client_protocol_schema::v1::SessionNotification;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Far longer than anything here takes; only a fault waits for it.
const PATIENCE: Duration = Duration::from_secs(10);

/// A command for the agent with its own session store and nothing of our environment.
pub(crate) fn command(dir: &Path, env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kandev-mock-agent"));
    command
        .env_clear()
        .env("MOCK_SESSION_DIR", dir.join("sessions"))
        .env("MOCK_SPEED", "0")
        .envs(env.iter().copied())
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The turn's frames and its end.
pub(crate) struct Ended {
    /// `update` of every `session/update`.
    pub(crate) updates: Vec<Value>,
    /// The whole answer to the prompt.
    pub(crate) answer: Value,
}

impl Ended {
    pub(crate) fn text(&self) -> String {
        let chunks = self.of("agent_message_chunk").into_iter();
        chunks
            .filter_map(|u| u["content"]["text"].as_str().map(str::to_owned))
            .collect()
    }

    pub(crate) fn of(&self, kind: &str) -> Vec<&Value> {
        let wanted = |u: &&Value| u["sessionUpdate"] == kind;
        self.updates.iter().filter(wanted).collect()
    }

    pub(crate) fn stop_reason(&self) -> &str {
        self.answer["result"]["stopReason"].as_str().unwrap_or_default()
    }
}

/// A running agent.
pub(crate) struct Agent {
    pub(crate) child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    lines: Receiver<Vec<u8>>,
    stderr: Option<JoinHandle<String>>,
    next_id: u64,
    pub(crate) session: String,
    pub(crate) cwd: String,
    dir: Option<TempDir>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Only now, since the agent works in it.
        drop(self.dir.take());
    }
}

impl Agent {
    pub(crate) fn spawn(dir: &Path, env: &[(&str, &str)]) -> Self {
        Self::of(command(dir, env), dir)
    }

    /// An agent with an address space of this many KiB.
    pub(crate) fn spawn_limited(dir: &Path, kib: u64) -> Self {
        let plain = command(dir, &[]);
        let mut limited = Command::new("sh");
        let script = format!("ulimit -v {kib}; exec \"$0\"");
        limited.args(["-c", &script]).arg(plain.get_program());
        limited.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        limited
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Self::of(limited, dir)
    }

    fn of(mut command: Command, dir: &Path) -> Self {
        let mut child = command.spawn().unwrap();
        let (lines_to, lines) = channel();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            let mut line = Vec::new();
            while stdout.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                if lines_to.send(std::mem::take(&mut line)).is_err() {
                    return;
                }
            }
        });
        let mut stderr = child.stderr.take().unwrap();
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        Self {
            stdin: child.stdin.take(),
            child,
            lines,
            stderr: Some(stderr),
            next_id: 1,
            session: String::new(),
            cwd: dir.to_str().unwrap().to_owned(),
            dir: None,
        }
    }

    /// An agent in a directory of its own, with a session open and its first updates read.
    pub(crate) fn ready(env: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut agent = Self::spawn(dir.path(), env);
        agent.dir = Some(dir);
        agent.handshake();
        agent.open();
        let koda = env.contains(&("MOCK_DIALECT", "koda"));
        (0..if koda { 4 } else { 1 }).for_each(|_| drop(agent.frame()));
        agent
    }

    pub(crate) fn handshake(&mut self) -> Value {
        let capabilities = json!({
            "fs": {"readTextFile": true, "writeTextFile": true}, "terminal": true,
            "session": {"configOptions": {"boolean": {}}},
        });
        let params = json!({"protocolVersion": 1, "clientCapabilities": capabilities});
        self.call("initialize", &params)
    }

    pub(crate) fn open(&mut self) -> Value {
        let params = json!({"cwd": self.cwd, "mcpServers": []});
        let answer = self.call("session/new", &params);
        answer["result"]["sessionId"]
            .as_str()
            .unwrap_or_default()
            .clone_into(&mut self.session);
        answer
    }

    pub(crate) fn write(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(line.as_bytes()).unwrap();
        stdin.write_all(b"\n").unwrap();
        stdin.flush().unwrap();
    }

    /// Sends a request and returns its id.
    pub(crate) fn send(&mut self, method: &str, params: &Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.write(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string());
        id
    }

    pub(crate) fn notify(&mut self, method: &str, params: &Value) {
        self.write(&json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string());
    }

    /// The next line without its newline, or None at the end of stdout.
    pub(crate) fn try_line(&mut self) -> Option<Vec<u8>> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(mut line) => {
                if line.last() == Some(&b'\n') {
                    line.pop();
                }
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the agent says nothing"),
        }
    }

    /// True if nothing comes for this long.
    pub(crate) fn silent_for(&mut self, time: Duration) -> bool {
        matches!(self.lines.recv_timeout(time), Err(RecvTimeoutError::Timeout))
    }

    /// The next line as JSON.
    pub(crate) fn frame(&mut self) -> Value {
        let line = self.try_line().expect("stdout has ended");
        serde_json::from_slice(&line).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&line)))
    }

    /// The answer to a request; what comes before it is dropped.
    pub(crate) fn answer(&mut self, id: u64) -> Value {
        loop {
            let frame = self.frame();
            if frame["id"] == id && frame["method"].is_null() {
                return frame;
            }
        }
    }

    pub(crate) fn call(&mut self, method: &str, params: &Value) -> Value {
        let id = self.send(method, params);
        self.answer(id)
    }

    pub(crate) fn send_prompt(&mut self, text: &str) -> u64 {
        let params = json!({"sessionId": self.session, "prompt": [{"type": "text", "text": text}]});
        self.send("session/prompt", &params)
    }

    pub(crate) fn cancel(&mut self) {
        let params = json!({"sessionId": self.session});
        self.notify("session/cancel", &params);
    }

    /// Collects the turn of a prompt that was sent. Requests of the agent are answered by `serve`, with a result.
    pub(crate) fn collect(&mut self, id: u64, mut serve: impl FnMut(&Value) -> Value) -> Ended {
        let mut updates = Vec::new();
        loop {
            let frame = self.frame();
            if frame["method"] == "session/update" {
                updates.push(frame["params"]["update"].clone());
            } else if frame["method"].is_string() && !frame["id"].is_null() {
                let result = serve(&frame);
                self.write(&json!({"jsonrpc": "2.0", "id": frame["id"], "result": result}).to_string());
            } else if frame["id"] == id {
                let answer = frame;
                return Ended { updates, answer };
            }
        }
    }

    /// A whole turn in which the agent asks nothing.
    pub(crate) fn prompt(&mut self, text: &str) -> Ended {
        let id = self.send_prompt(text);
        self.collect(id, |frame| panic!("unexpected request {frame}"))
    }

    /// Waits until a chunk with this text came.
    pub(crate) fn wait_for_text(&mut self, text: &str) {
        while self.frame()["params"]["update"]["content"]["text"] != text {}
    }

    /// Waits for the end of the process.
    pub(crate) fn exit(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        while self.try_line().is_some() {
            assert!(Instant::now() < end, "the agent does not end");
        }
        self.child.wait().unwrap()
    }

    pub(crate) fn stderr(&mut self) -> String {
        self.stderr.take().unwrap().join().unwrap()
    }

    /// Closes stdin and expects a clean end.
    pub(crate) fn finish(mut self) {
        self.stdin = None;
        assert_eq!(self.exit().code(), Some(0), "{}", self.stderr());
    }
}

/// Panics unless the update is one the official types know.
pub(crate) fn official(update: &Value) {
    let params = json!({"sessionId": "s", "update": update});
    let parsed = serde_json::from_value::<SessionNotification>(params);
    let parsed = parsed.unwrap_or_else(|e| panic!("{e}: {update}"));
    // The official types skip fields they cannot read: what comes back must be all there was.
    let back = serde_json::to_value(parsed).unwrap()["update"].clone();
    contains(&back, update);
}

/// Panics unless all of `part` is in `whole`.
pub(crate) fn contains(whole: &Value, part: &Value) {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            for (key, value) in part {
                match whole.get(key) {
                    Some(found) => contains(found, value),
                    // Nulls and defaults are left out when written.
                    None => assert!(
                        value.is_null() || *value == "pending" || *value == "other",
                        "{key}: {value} got lost"
                    ),
                }
            }
        }
        (Value::Array(whole), Value::Array(part)) => {
            assert_eq!(whole.len(), part.len());
            whole.iter().zip(part).for_each(|(w, p)| contains(w, p));
        }
        _ => assert_eq!(whole, part),
    }
}
