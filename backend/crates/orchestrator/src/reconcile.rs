//! The reconciler: what the database says and what the engine has are brought together, at the start and again and again.
//!
//! It takes nothing for granted but its two lists, and does nothing when it could not read one of them. What cannot be
//! done about one instance or container holds up no other, and is tried again in the next round:
//! - an instance that is recorded as active and held by no task of this process is taken up (`instance/reconnect.rs`); one
//!   whose record does not suffice for that is ended: its container first, then it is `failed` with `runtime_lost`;
//! - a container of this deployment without an active instance, older than a grace: removed.
//!
//! Containers of other deployments are not even listed.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use kandev_acp::elicitation::Action;
use kandev_acp::permission::Choice;
use kandev_domain::status::TurnStatus;
use kandev_domain::{
    DecidedBy, ElicitationStatus, EventKind, FailureCode, InstanceId, InstanceStatus, LogLevel,
    PermissionStatus, TurnState,
};
use kandev_runtime::{ContainerState, ContainerSummary, LABEL_INSTANCE, RuntimeError};
use kandev_store::elicitations::{Elicitation, ElicitationEnd};
use kandev_store::instances::Instance;
use kandev_store::journal::Change;
use kandev_store::permissions::{Permission, PermissionEnd};
use kandev_store::turns::TurnPatch;
use kandev_store::{StoreError, elicitations, instances, journal, permissions, servers, turns};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::journal::JournalError;
use crate::lease::Term;
use crate::outbox::{Context, Outbox};
use crate::{Orchestrator, Shared};

/// Why a round was given up; the next one tries again.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The engine.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// What a round did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Instances that were taken up from a server that has ended.
    pub taken_up: usize,
    /// Instances that were lost.
    pub lost: usize,
    /// Containers that were removed.
    pub removed: usize,
    /// Instances and containers that are left to the next round.
    pub left: usize,
}

/// How many instances or containers are dealt with at a time: each may take its whole grace to end.
const AT_ONCE: usize = 8;

pub(crate) async fn run(orchestrator: Arc<Orchestrator>, closing: CancellationToken) {
    let shared = &orchestrator.shared;
    let every = shared.settings.reconcile_interval;
    let mut interval = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        // The first round is told of by the lease, once there is one.
        tokio::select! {
            _ = interval.tick() => {}
            () = shared.wakes.unheld.notified() => {}
            () = closing.cancelled() => return,
        }
        let round = tokio::select! {
            round = reconcile(&orchestrator) => round,
            () = closing.cancelled() => return,
        };
        match round {
            Ok(outcome) if outcome == Outcome::default() => {}
            Ok(Outcome {
                taken_up,
                lost,
                removed,
                left,
            }) => {
                tracing::info!(taken_up, lost, removed, left, "reconciled");
            }
            Err(error) => tracing::warn!(%error, "reconciling was given up for now"),
        }
    }
}

async fn reconcile(orchestrator: &Orchestrator) -> Result<Outcome, ReconcileError> {
    let shared = orchestrator.shared.as_ref();
    let held = |id| orchestrator.holds(id);
    let Some(term) = shared.lease.term() else {
        return Ok(Outcome::default());
    };
    let owner = &shared.settings.owner;
    // The engine first: an instance that appears after this has a container that is not in the list, which harms nobody.
    let containers = shared.runtime.list(owner).await?;
    let active = instances::active(&shared.pool, owner).await?;
    let mut lost = Vec::new();
    let mut taken_up = Vec::new();
    let is_free = |i: &&Instance| match &i.holder {
        // Ours without a task: its task was lost.
        Some(holder) => holder.ended || holder.fence == term.fence,
        None => true,
    };
    let mut free: Vec<_> = active.iter().filter(is_free).filter(|i| !held(i.id)).collect();
    // Those that have a container have a slot too; what is left is for those that wait.
    free.sort_by_key(|instance| instance.container_id.is_none());
    for instance in free {
        let what = format!("instance {}", instance.id);
        match attempt(what.clone(), take_up(orchestrator, &term, instance.id).boxed()).await {
            Attempt::Needless => lost.push(attempt(what, lose(shared, &term, instance, &containers)).boxed()),
            outcome => taken_up.push(outcome),
        }
    }
    let lost = all(lost).await;
    let mut removed = Vec::new();
    for container in &containers {
        let id = instance_of(container);
        if !id.is_some_and(|id| held(id) || active.iter().any(|i| i.id == id)) {
            let what = format!("container {}", container.id);
            removed.push(attempt(what, remove_orphan(shared, id, container)).boxed());
        }
    }
    let removed = all(removed).await;
    let count = |of: &[Attempt], which| of.iter().filter(|a| **a == which).count();
    Ok(Outcome {
        taken_up: count(&taken_up, Attempt::Done),
        lost: count(&lost, Attempt::Done),
        removed: count(&removed, Attempt::Done),
        left: [&taken_up, &lost, &removed]
            .map(|of| count(of, Attempt::Left))
            .iter()
            .sum(),
    })
}

/// False if what is on record does not suffice.
async fn take_up(
    orchestrator: &Orchestrator,
    term: &Arc<Term>,
    id: InstanceId,
) -> Result<bool, ReconcileError> {
    if !servers::claim(&orchestrator.shared.pool, id, term.fence).await? {
        // Another server was faster, or it has ended.
        return Ok(true);
    }
    // Not what it was when the list was read: its task may have ended it meanwhile, which leaves nothing to do.
    match instances::get(&orchestrator.shared.pool, id).await? {
        Some(instance) if !instance.status.is_final() && !orchestrator.holds(id) => {
            Ok(orchestrator.take_up(Arc::clone(term), &instance).await?)
        }
        _ => Ok(true),
    }
}

/// What came of one instance or container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Done,
    Needless,
    /// To the next round.
    Left,
}

async fn attempt(what: String, work: impl Future<Output = Result<bool, ReconcileError>>) -> Attempt {
    match work.await {
        Ok(true) => Attempt::Done,
        Ok(false) => Attempt::Needless,
        Err(error) => {
            tracing::warn!(%error, "{what} is left to the next round");
            Attempt::Left
        }
    }
}

async fn all(attempts: Vec<BoxFuture<'_, Attempt>>) -> Vec<Attempt> {
    stream::iter(attempts).buffer_unordered(AT_ONCE).collect().await
}

fn instance_of(container: &ContainerSummary) -> Option<InstanceId> {
    container
        .labels
        .get(LABEL_INSTANCE)
        .and_then(|id| id.parse().ok())
}

/// Removes a container, if nothing speaks for it. False if something does.
async fn remove_orphan(
    shared: &Shared,
    id: Option<InstanceId>,
    container: &ContainerSummary,
) -> Result<bool, ReconcileError> {
    if !is_orphan(shared, id, container).await? {
        return Ok(false);
    }
    tracing::info!(container = %container.id, name = container.name, "removing a container without an instance");
    shared.runtime.remove(&container.id).await?;
    Ok(true)
}

/// The container's instance has ended, or there is none and the container is not young either.
async fn is_orphan(
    shared: &Shared,
    id: Option<InstanceId>,
    container: &ContainerSummary,
) -> Result<bool, ReconcileError> {
    let instance = match id {
        Some(id) => instances::get(&shared.pool, id).await?,
        None => None,
    };
    if let Some(instance) = instance {
        return Ok(instance.status.is_final());
    }
    let created: chrono::DateTime<chrono::Utc> = container.created_at.into();
    let age = (shared.clock.now() - created).to_std().unwrap_or_default();
    Ok(age >= shared.settings.orphan_grace)
}

/// Ends an instance that no task holds and none can take up: its container first, then its turns and its row, with what the engine still knows.
/// False if it has ended by now.
async fn lose(
    shared: &Shared,
    term: &Arc<Term>,
    instance: &Instance,
    containers: &[ContainerSummary],
) -> Result<bool, ReconcileError> {
    // Its task may have ended it between the reading of the list and the look at who holds it.
    let now = instances::get(&shared.pool, instance.id).await?;
    if now.is_none_or(|now| now.status.is_final()) {
        return Ok(false);
    }
    let container = containers.iter().find(|c| instance_of(c) == Some(instance.id));
    let mut exit = None;
    let mut found = None;
    if let Some(container) = container {
        found = Some(shared.runtime.inspect(&container.id).await?);
        shared
            .runtime
            .stop(&container.id, shared.settings.stop_grace)
            .await?;
        if let ContainerState::Exited(status) = shared.runtime.inspect(&container.id).await? {
            exit = Some(status);
        }
        shared.runtime.remove(&container.id).await?;
    }
    let position = journal::position(&shared.pool, instance.id).await?;
    let mut outbox = Outbox::new(instance.id, Arc::clone(term), shared.journal.clone(), position);
    let now = shared.clock.now();
    let message = what_was_lost(instance, found.as_ref());
    for turn in turns::unfinished(&shared.pool, instance.id).await? {
        let mut patch = TurnPatch::of(turn.id, TurnStatus::Failed);
        patch.error_code = Some(FailureCode::RuntimeLost.as_str().to_owned());
        patch.error_message = Some(message.to_owned());
        patch.finished_at = Some(now);
        patch.last_seq = Some(outbox.next_seq());
        let error = json!({"code": FailureCode::RuntimeLost, "message": message});
        let data = json!({"turn_id": turn.id, "status": TurnStatus::Failed, "error": error});
        let context = Context {
            session_id: instance.session_id.clone(),
            turn_id: Some(turn.id),
        };
        outbox.event(now, EventKind::TurnEnded, context, &data);
        outbox.change(Change::Turn(Box::new(patch)));
    }
    for permission in permissions::pending(&shared.pool, instance.id).await? {
        cancel_permission(&mut outbox, permission, now);
    }
    for elicitation in elicitations::pending(&shared.pool, instance.id).await? {
        cancel_elicitation(&mut outbox, elicitation, now);
    }
    let context = Context {
        session_id: instance.session_id.clone(),
        turn_id: None,
    };
    outbox.log(now, LogLevel::Error, context.clone(), message.to_owned());
    let exit_code = exit.as_ref().map(|e| e.code);
    outbox.patch(|p| {
        p.status = Some(InstanceStatus::Failed);
        p.turn_state = Some(TurnState::Idle);
        p.error_code = Some(FailureCode::RuntimeLost);
        p.error_message = Some(message.to_owned());
        p.exit_code = exit_code;
        p.finished_at = Some(now);
    });
    let error = json!({"code": FailureCode::RuntimeLost, "message": message});
    let data = json!({"status": InstanceStatus::Failed, "exit_code": exit_code, "error": error});
    outbox.event(now, EventKind::Status, context, &data);
    outbox.durable();
    outbox.flush(false);
    outbox.stored().await?;
    tracing::warn!(instance_id = %instance.id, "{message}");
    Ok(true)
}

/// What became of an instance, out of what its server left and where its container stood.
const fn what_was_lost(instance: &Instance, found: Option<&ContainerState>) -> &'static str {
    match found {
        Some(ContainerState::Running) => {
            "the server ended, and what it left does not suffice to take the instance up: its container was stopped"
        }
        Some(ContainerState::Exited(_)) => {
            "the server ended, and what it left does not suffice to take the instance up: its container had ended"
        }
        Some(ContainerState::Created) => "the server ended before the instance's container was started",
        None if instance.container_id.is_none() => "the server ended before the instance had a container",
        None => "the instance's container is gone",
    }
}

/// Nobody can answer it any more.
fn cancel_permission(outbox: &mut Outbox, permission: Permission, now: DateTime<Utc>) {
    let (status, by) = (PermissionStatus::Cancelled, DecidedBy::InstanceEnd);
    let outcome = Choice::Cancelled.outcome();
    let data = json!({"id": permission.id, "status": status, "outcome": outcome, "decided_by": by, "answered_at": now});
    let context = Context {
        session_id: permission.session_id,
        turn_id: permission.turn_id,
    };
    outbox.event(now, EventKind::PermissionResolved, context, &data);
    outbox.change(Change::PermissionAnswered(PermissionEnd {
        id: permission.id,
        status,
        outcome: outcome.get().to_owned(),
        decided_by: by,
        remembered: None,
        answered_at: now,
    }));
}

/// The same.
fn cancel_elicitation(outbox: &mut Outbox, elicitation: Elicitation, now: DateTime<Utc>) {
    let (status, by) = (ElicitationStatus::Cancelled, DecidedBy::InstanceEnd);
    let outcome = Action::Cancel.outcome();
    let data = json!({"id": elicitation.id, "status": status, "outcome": outcome, "decided_by": by, "answered_at": now});
    let context = Context {
        session_id: elicitation.session_id,
        turn_id: elicitation.turn_id,
    };
    outbox.event(now, EventKind::ElicitationResolved, context, &data);
    outbox.change(Change::ElicitationAnswered(ElicitationEnd {
        id: elicitation.id,
        status,
        outcome: outcome.get().to_owned(),
        decided_by: by,
        answered_at: now,
    }));
}
