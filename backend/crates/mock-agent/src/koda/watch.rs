//! Files that others change while the agent runs: the roles, and the user's settings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::{roles, settings, subagents};
use crate::agent::Agent;
use crate::out::complain;
use crate::sync::lock;

/// How often it looks. The real agent is told by the file system, and gathers for as long.
const PERIOD: Duration = Duration::from_millis(200);

/// Begins to look, once, for a client that understands what it would be told.
pub(crate) fn start(agent: &Arc<Agent>, started: &AtomicBool) {
    if !subagents::is_understood(agent) || started.swap(true, Ordering::SeqCst) {
        return;
    }
    let agent = Arc::clone(agent);
    // It lives as long as the process.
    let spawned = std::thread::Builder::new()
        .name("watch".to_owned())
        .spawn(move || {
            let mut seen = section(&agent);
            loop {
                std::thread::sleep(PERIOD);
                let now = section(&agent);
                if now != seen {
                    settings::change(&agent, &now);
                    seen = now;
                }
                for session in agent.sessions() {
                    let _files = lock(&session.subagents.files);
                    let found = roles::catalogue(&agent, &session.cwd);
                    if let Some(update) = session.subagents.new_catalogue(found) {
                        subagents::tell(&agent, &session, &update);
                    }
                }
            }
        });
    if let Err(e) = spawned {
        complain(&format!("nobody watches the files: {e}"));
    }
}

/// The section of subagents in the user's settings.
fn section(agent: &Agent) -> Value {
    let path = agent
        .config
        .koda_home
        .as_ref()
        .map(|home| home.join("settings.json"));
    let text = path.and_then(|path| std::fs::read(path).ok());
    let all: Value = text
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default();
    all["subagents"].clone()
}
