//! A launch's policy: one word, or one for each kind of tool.

use std::collections::BTreeMap;

use kandev_domain::permission::{PermissionRules, ToolKind};
use kandev_domain::status::PermissionPolicy;
use kandev_orchestrator::LaunchOptions;
use kandev_store::instances::Instance;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};

const FIELD: &str = "permission_policy";
/// The key of what holds where there is no rule.
const DEFAULT: &str = "default";

/// How permission requests are answered.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum PolicyView {
    /// All alike.
    One(PermissionPolicy),
    /// By kind of tool; `default` for the rest.
    ByKind(BTreeMap<&'static str, PermissionPolicy>),
}

impl PolicyView {
    /// Of an instance's launch.
    pub(super) fn of(instance: &Instance) -> Self {
        let default = instance.permission_policy;
        let options = serde_json::from_str::<LaunchOptions>(&instance.launch);
        let rules = options.map(|o| o.permission_rules.0).unwrap_or_default();
        if rules.is_empty() {
            return Self::One(default);
        }
        let rules = rules.into_iter().map(|(kind, policy)| (kind.as_str(), policy));
        Self::ByKind(std::iter::once((DEFAULT, default)).chain(rules).collect())
    }
}

/// Reads one.
pub(super) fn read(body: Option<Value>) -> ApiResult<(PermissionPolicy, PermissionRules)> {
    let mut default = PermissionPolicy::Ask;
    let mut rules = PermissionRules::default();
    match body {
        None | Some(Value::Null) => {}
        Some(Value::Object(fields)) => {
            for (name, value) in fields {
                let field = format!("{FIELD}.{name}");
                let policy = policy(&field, &value)?;
                if name == DEFAULT {
                    default = policy;
                    continue;
                }
                let kind: ToolKind = name
                    .parse()
                    .map_err(|_| ApiError::validation(&field, "is no kind of tool"))?;
                rules.0.insert(kind, policy);
            }
        }
        Some(value) => default = policy(FIELD, &value)?,
    }
    Ok((default, rules))
}

fn policy(field: &str, value: &Value) -> ApiResult<PermissionPolicy> {
    let parsed = value.as_str().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| ApiError::validation(field, "must be 'ask', 'allow' or 'reject'"))
}
