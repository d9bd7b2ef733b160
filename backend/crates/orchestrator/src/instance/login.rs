//! Logging in to an agent that wants it.
//!
//! A method that a launch names is used before the session is opened, as an agent's first error may come long after. Else an agent
//! that answers -32000 is tried once, by a method that the environment answers. Whichever it was is used again when the container is
//! started anew. Source: ACP v1, "Initialization".

use kandev_acp::RpcError;
use kandev_acp::dialect::AuthMethod;
use kandev_acp::rpc_error::AUTH_REQUIRED;
use kandev_domain::FailureCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::actor::Actor;
use super::ending::{Cause, Failure};
use super::handshake::Call;

/// How the agent is logged in to.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Login {
    /// By this method, before a session is opened.
    pub(super) method: Option<String>,
    /// The agent of this container has been asked.
    is_tried: bool,
}

/// The details of `auth_required`.
#[derive(Serialize)]
struct AuthRequired<'a> {
    code: i64,
    message: &'a str,
    data: Option<&'a RawValue>,
    auth_methods: Vec<&'a RawValue>,
}

impl Login {
    pub(super) fn by(method: Option<&String>) -> Self {
        Self {
            method: method.cloned(),
            ..Self::default()
        }
    }

    /// The next container's agent knows nothing of it.
    pub(super) const fn forget_agent(&mut self) {
        self.is_tried = false;
    }
}

impl Actor {
    /// By the method of this id, which somebody has named.
    pub(super) fn log_in(&mut self, method: &str) {
        let Some(agent) = &self.agent else { return };
        let is_program = |m: &AuthMethod| AuthMethod::is_program(&as_value(&m.raw));
        let offered = agent
            .auth_methods
            .iter()
            .any(|m| m.id == method && !is_program(m));
        match agent.dialect.authenticate(method) {
            Some(call) if offered => {
                self.login.is_tried = true;
                self.call(Call::Authenticate, call);
            }
            _ => {
                let error = RpcError::new(
                    AUTH_REQUIRED,
                    format!("the agent has no way to authenticate '{method}'"),
                );
                self.auth_required(&error);
            }
        }
    }

    /// One of the agent's methods may be answered by variables that the launch gave; else only a person can.
    pub(super) fn authenticate(&mut self, error: &RpcError) {
        let Some(agent) = &self.agent else { return };
        let method = agent
            .auth_methods
            .iter()
            .find(|method| self.env_answers(&method.raw));
        let call = method.and_then(|method| agent.dialect.authenticate(&method.id));
        match call {
            Some(call) if !self.login.is_tried => {
                self.login.is_tried = true;
                self.call(Call::Authenticate, call);
            }
            _ => self.auth_required(error),
        }
    }

    fn env_answers(&self, method: &RawValue) -> bool {
        let method = as_value(method);
        let vars = method["vars"].as_array().map(Vec::as_slice).unwrap_or_default();
        let known =
            |name: &str| self.spec.env.contains_key(name) || self.spec.agent_type.env.contains_key(name);
        method["type"] == "env_var"
            && !vars.is_empty()
            && vars.iter().all(|var| var["name"].as_str().is_some_and(known))
    }

    pub(super) fn auth_required(&mut self, error: &RpcError) {
        let methods: Vec<&RawValue> = self
            .agent
            .iter()
            .flat_map(|a| &a.auth_methods)
            .map(|m| m.raw.as_ref())
            .collect();
        let details = super::raw(&AuthRequired {
            code: error.code,
            message: &error.message,
            data: error.data.as_deref(),
            auth_methods: methods,
        });
        self.end(Cause::Failed(Failure {
            code: FailureCode::AuthRequired,
            message: format!("the agent wants to be authenticated: {}", error.message),
            details: Some(details),
            transient: false,
        }));
    }
}

fn as_value(method: &RawValue) -> Value {
    serde_json::from_str(method.get()).unwrap_or_default()
}
