//! The session that a launch goes on with, and launches that repeat another one for that.

use std::collections::BTreeMap;
use std::sync::Arc;

use kandev_domain::InstanceId;
use kandev_domain::usage::Cost;
use kandev_store::instances::{self, Instance};
use kandev_store::sessions;

use super::{Launched, Orchestrator, STORE_LIMIT, Secrets};
use crate::instance::{Choices, Offered, SESSION_COST, inherits};
use crate::launch::{LaunchError, LaunchRequest, OnLost, ResumeFrom, ResumeRequest, TASK_DESCRIPTION};

impl Orchestrator {
    /// Launches a fresh instance, as one that has ended was launched, that goes on with its session, or with a branch of that. One
    /// that has not ended is in the way of its own session only.
    pub async fn resume(
        self: &Arc<Self>,
        id: InstanceId,
        how: ResumeRequest,
    ) -> Result<Launched, LaunchError> {
        let old = kandev_store::within(STORE_LIMIT, instances::get(&self.shared.pool, id))
            .await?
            .ok_or(LaunchError::NoSuchInstance)?;
        let is_own = how
            .session
            .as_ref()
            .is_none_or(|session| Some(session) == old.session_id.as_ref());
        if is_own && !old.status.is_final() {
            return Err(LaunchError::StillActive(old.id));
        }
        let Some(session_id) = how.session.clone().or_else(|| old.session_id.clone()) else {
            return Err(LaunchError::NotResumable(
                "the instance never had a session".to_owned(),
            ));
        };
        let request = self.repeat(old, session_id, how)?;
        self.launch(request).await
    }

    fn repeat(
        &self,
        old: Instance,
        session_id: String,
        how: ResumeRequest,
    ) -> Result<LaunchRequest, LaunchError> {
        let env = how.env;
        let mut secrets = match self.shared.sealer.open::<Secrets>(old.id, &old.env_sealed) {
            Ok(secrets) => secrets,
            // The deployment's key has changed: the caller has to say again what was secret.
            Err(_) if old.env_names.iter().all(|name| env.contains_key(name)) => Secrets {
                env: BTreeMap::new(),
                mcp_servers: "[]".to_owned(),
            },
            Err(error) => {
                let names = old.env_names.join(", ");
                return Err(LaunchError::invalid(
                    "env",
                    format!("{error}; give these again: {names}"),
                ));
            }
        };
        secrets.env.extend(env);
        // The first prompt of the old instance was its own.
        secrets.env.remove(TASK_DESCRIPTION);
        let mcp_servers = how.mcp_servers.unwrap_or_else(|| secrets.mcp_servers());
        let options = serde_json::from_str(&old.launch).map_err(|e| LaunchError::Internal(e.to_string()))?;
        let metadata = old.metadata.as_object().cloned().unwrap_or_default();
        Ok(LaunchRequest {
            agent_type: old.agent_type,
            workspace_path: old.workspace_path,
            // A branch of a session that is worked in: the task has its one instance.
            task_id: how
                .task_id
                .or_else(|| old.status.is_final().then_some(old.task_id)),
            env: secrets.env,
            priority: old.priority,
            metadata,
            prompt: how.prompt,
            session_id: Some(session_id),
            mcp_servers,
            permission_policy: old.permission_policy,
            lifecycle: old.lifecycle,
            options,
            resumed_from: Some(old.id),
        })
    }

    /// What is known of it; none if the launch begins a session of its own.
    pub(super) async fn session_to_resume(
        &self,
        request: &LaunchRequest,
    ) -> Result<Option<ResumeFrom>, LaunchError> {
        let Some(session_id) = &request.session_id else {
            return Ok(None);
        };
        let pool = &self.shared.pool;
        let look = async {
            let known = sessions::by_agents_id(pool, session_id, Some(&request.agent_type)).await?;
            let facets = match &known {
                Some(session) => sessions::facets(pool, session.key).await?,
                None => Vec::new(),
            };
            Ok::<_, kandev_store::StoreError>((known, facets))
        };
        let (known, facets) = kandev_store::within(STORE_LIMIT, look).await?;
        let is_deleted = known.as_ref().is_some_and(|session| session.deleted_at.is_some());
        if is_deleted && request.options.on_lost == OnLost::Fail {
            let text = "the agent has deleted the session".to_owned();
            return Err(LaunchError::NotResumable(text));
        }
        Ok(Some(ResumeFrom {
            session_id: session_id.clone(),
            key: known.map(|s| s.key),
            chosen: Choices::of_facets(&facets),
            cost: cost_of(&facets),
            offered: Offered::of_facets(&facets),
            inherits: inherits(&facets),
            lost: false,
            restarted: false,
        }))
    }
}

/// What the agent last said that the session has cost.
fn cost_of(facets: &[(String, String)]) -> Option<Cost> {
    let (_, cost) = facets.iter().find(|(facet, _)| facet == SESSION_COST)?;
    serde_json::from_str(cost).ok()
}
