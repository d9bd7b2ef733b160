//! Launches of agents of the protocol before JSON-RPC, which have their task from their environment.

use kandev_domain::content::PromptCapabilities;

use super::{LaunchError, LaunchRequest, TASK_DESCRIPTION};

/// Puts the prompt where the agent finds it, and refuses what it cannot be told.
pub(crate) fn prepare(request: &mut LaunchRequest) -> Result<(), LaunchError> {
    let options = &request.options;
    for (given, field, what) in [
        (request.session_id.is_some(), "session_id", "sessions"),
        (!request.mcp_servers.is_empty(), "mcp_servers", "MCP servers"),
        (options.auth_method.is_some(), "auth_method", "logins"),
        (options.mode.is_some(), "mode", "modes"),
        (options.model.is_some(), "model", "models"),
        (!options.config_options.is_empty(), "config_options", "options"),
        (
            !options.additional_directories.is_empty(),
            "additional_directories",
            "additional directories",
        ),
        (
            !options.session_params.is_empty(),
            "session_params",
            "parameters of sessions",
        ),
    ] {
        if given {
            return Err(LaunchError::Unsupported { field, what });
        }
    }
    let Some(prompt) = &request.prompt else {
        return Ok(());
    };
    if !prompt.paths().is_empty() || !prompt.missing().is_empty() {
        let problem =
            "agents of the legacy protocol have no way to be sent files: write the path into the text";
        return Err(LaunchError::invalid("prompt", problem));
    }
    prompt
        .supported_by(PromptCapabilities::default())
        .map_err(|e| LaunchError::invalid("prompt", e.to_string()))?;
    let task = prompt.to_text();
    let given = request.env.get(TASK_DESCRIPTION);
    if given.is_some_and(|given| !given.trim().is_empty() && *given != task) {
        let problem = "agents of the legacy protocol have their task from env.TASK_DESCRIPTION, which says something else";
        return Err(LaunchError::invalid("prompt", problem));
    }
    request.env.insert(TASK_DESCRIPTION.to_owned(), task);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kandev_domain::content::Prompt;
    use kandev_domain::status::{InstanceLifecycle, PermissionPolicy};
    use serde_json::{Map, json};

    use super::*;
    use crate::launch::LaunchOptions;

    fn request(prompt: Option<&str>, task: Option<&str>) -> LaunchRequest {
        LaunchRequest {
            agent_type: "old".to_owned(),
            workspace_path: "/w".to_owned(),
            task_id: None,
            env: task
                .map(|task| (TASK_DESCRIPTION.to_owned(), task.to_owned()))
                .into_iter()
                .collect::<BTreeMap<_, _>>(),
            priority: 0,
            metadata: Map::new(),
            prompt: prompt.map(|prompt| Prompt::text(prompt).unwrap()),
            session_id: None,
            mcp_servers: Vec::new(),
            permission_policy: PermissionPolicy::Ask,
            lifecycle: InstanceLifecycle::Interactive,
            options: LaunchOptions::default(),
            resumed_from: None,
        }
    }

    fn task_of(prompt: Option<&str>, task: Option<&str>) -> Result<Option<String>, LaunchError> {
        let mut request = request(prompt, task);
        prepare(&mut request)?;
        Ok(request.env.remove(TASK_DESCRIPTION))
    }

    #[test]
    fn the_prompt_is_the_task() {
        assert_eq!(task_of(Some("a\nb"), None).unwrap().as_deref(), Some("a\nb"));
        assert_eq!(task_of(Some("a"), Some("a")).unwrap().as_deref(), Some("a"));
        assert_eq!(task_of(Some("a"), Some(" ")).unwrap().as_deref(), Some("a"));
        assert_eq!(task_of(None, None).unwrap(), None);
        let two = task_of(Some("a"), Some("b"));
        assert!(matches!(two, Err(LaunchError::Invalid { field: "prompt", .. })));
    }

    fn server() -> kandev_domain::McpServer {
        serde_json::from_value(json!({"name": "s", "command": "/s"})).unwrap()
    }

    #[test]
    fn what_it_cannot_be_told_is_refused() {
        let refused = |change: fn(&mut LaunchRequest)| {
            let mut request = request(Some("a"), None);
            change(&mut request);
            match prepare(&mut request) {
                Err(LaunchError::Unsupported { field, .. } | LaunchError::Invalid { field, .. }) => field,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(refused(|r| r.session_id = Some("s".to_owned())), "session_id");
        assert_eq!(refused(|r| r.mcp_servers.push(server())), "mcp_servers");
        let login = |r: &mut LaunchRequest| r.options.auth_method = Some("m".to_owned());
        assert_eq!(refused(login), "auth_method");
        assert_eq!(refused(|r| r.options.mode = Some("m".to_owned())), "mode");
        assert_eq!(refused(|r| r.options.model = Some("m".to_owned())), "model");
        let image = json!({"type": "image", "mimeType": "image/png", "data": "AA=="});
        let image = Prompt::blocks(vec![image]).unwrap();
        let mut request = request(None, None);
        request.prompt = Some(image);
        assert!(matches!(
            prepare(&mut request),
            Err(LaunchError::Invalid { field: "prompt", .. })
        ));
    }
}
