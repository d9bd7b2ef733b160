//! The session that a launch goes on with.

use kandev_domain::usage::Cost;
use kandev_store::sessions;

use super::{Orchestrator, STORE_LIMIT};
use crate::instance::{Choices, Offered, SESSION_COST, inherits};
use crate::launch::{LaunchError, LaunchRequest, OnLost, ResumeFrom};

impl Orchestrator {
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
