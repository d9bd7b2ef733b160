//! Taking up an instance of a server that has ended: from what is on record to a task.

use std::sync::Arc;
use std::time::Duration;

use kandev_acp::{Dialect, Effect, KandevState, read_update};
use kandev_domain::content::Prompt;
use kandev_domain::{EventKind, TurnStatus, mcp};
use kandev_store::instances::Instance;
use kandev_store::journal::EventQuery;
use kandev_store::turns::Turn;
use kandev_store::{PgPool, StoreError};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::{ActorParts, FileError, Orchestrator, Secrets};
use crate::instance::{MAX_AWAITED, Saved, TakeUp, ToolKinds};
use crate::launch::{InstanceSpec, LaunchOptions};
use crate::lease::Term;

impl Orchestrator {
    /// Takes an active instance up that this run holds and no task has. False if what is on record does not suffice.
    pub(crate) async fn take_up(&self, term: Arc<Term>, instance: &Instance) -> Result<bool, StoreError> {
        let pool = &self.shared.pool;
        let sealer = &self.shared.sealer;
        let saved = instance
            .saved
            .as_deref()
            .and_then(|sealed| sealer.open::<Box<RawValue>>(instance.id, sealed).ok());
        let saved = saved.and_then(|json| serde_json::from_str::<Saved>(json.get()).ok());
        let secrets = sealer.open::<Secrets>(instance.id, &instance.env_sealed);
        let options = serde_json::from_str::<LaunchOptions>(&instance.launch);
        let (Some(saved), Ok(secrets), Ok(options)) = (saved, secrets, options) else {
            return Ok(false);
        };
        let mcp_servers = mcp::merge(&saved.entry.mcp_servers, &secrets.mcp_servers());
        let mut saved = saved;
        for seq in saved.inside.lines() {
            if let Some(line) = kandev_store::journal::line(pool, instance.id, seq).await? {
                saved.inside.bring(seq, &line);
            }
        }
        let position = kandev_store::journal::position(pool, instance.id).await?;
        let mut queue = Vec::new();
        let mut updates = 0;
        let mut kinds = ToolKinds::default();
        for turn in kandev_store::turns::unfinished(pool, instance.id).await? {
            if turn.status == TurnStatus::Running {
                updates = updates_of(pool, &turn, &mut kinds).await?;
                continue;
            }
            let Ok(blocks) = serde_json::from_str::<Vec<Value>>(&turn.prompt) else {
                return Ok(false);
            };
            let mut prompt = Prompt::stored(blocks);
            match self.load_uploads(&mut prompt).await {
                Ok(()) => {}
                Err(FileError::Store(error)) => return Err(error),
                // Its turn will say so.
                Err(error) => tracing::warn!(turn_id = %turn.id, %error, "a prompt has lost a file"),
            }
            let meta = turn.prompt_meta.as_deref().map(serde_json::from_str);
            let Ok(meta) = meta.transpose() else {
                return Ok(false);
            };
            queue.push((turn.id, (prompt, meta.unwrap_or_default())));
        }
        let spec = InstanceSpec {
            id: instance.id,
            task_id: instance.task_id.clone(),
            agent_type: saved.entry.as_ref().clone(),
            workspace: instance.workspace_path.clone().into(),
            env: secrets.env,
            mcp_servers,
            priority: instance.priority,
            permission_policy: instance.permission_policy,
            lifecycle: instance.lifecycle,
            resume: saved.resume.clone(),
            options,
            remembered: self.remembered(instance.session_key).await?,
            first_prompt: None,
        };
        let limit = spec
            .options
            .timeout_seconds
            .unwrap_or(spec.agent_type.timeout_seconds);
        let age = (self.shared.clock.now() - instance.created_at)
            .to_std()
            .unwrap_or_default();
        let take_up = TakeUp {
            saved,
            status: instance.status,
            lines: position.lines,
            queue,
            updates,
            permissions: kandev_store::permissions::pending(pool, instance.id).await?,
            elicitations: kandev_store::elicitations::pending(pool, instance.id).await?,
            awaited: kandev_store::elicitations::awaited(pool, instance.id, MAX_AWAITED as i64).await?,
            kinds,
            life: Duration::from_secs(limit).saturating_sub(age),
        };
        // Nobody waits for the container of an instance that has one.
        let (created, _) = oneshot::channel();
        self.start_task(ActorParts {
            shared: Arc::clone(&self.shared),
            term,
            spec,
            position,
            take_up: Some(take_up),
            created,
        });
        Ok(true)
    }
}

/// How many updates a running turn had so far, and what they said of the kinds of its tool calls.
async fn updates_of(pool: &PgPool, turn: &Turn, kinds: &mut ToolKinds) -> Result<u64, StoreError> {
    let mut query = EventQuery {
        after: turn.first_seq.unwrap_or(0),
        until: None,
        kinds: vec![EventKind::Update],
        limit: 2000,
        max_bytes: 4 << 20,
    };
    let mut count = 0;
    loop {
        let page = kandev_store::journal::events(pool, turn.instance_id, &query).await?;
        for event in page.events.iter().filter(|e| e.turn_id == Some(turn.id)) {
            count += 1;
            // Events are of ACP's form whatever the agent speaks.
            let update = read_update(Dialect::Acp, &mut KandevState::default(), &event.data);
            if let Effect::ToolCall { id, kind } = update.effect {
                kinds.note(&id, kind);
            }
        }
        match page.next_after {
            Some(next) => query.after = next,
            None => return Ok(count),
        }
    }
}
