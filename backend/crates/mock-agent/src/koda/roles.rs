//! Roles of subagents: Markdown files in the workspace and in the user's folder.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::models::EFFORTS;
use super::refusal;
use super::settings::RESEARCH;
use crate::acp::text;
use crate::agent::{Agent, Reply};
use crate::frame::{INTERNAL_ERROR, INVALID_PARAMS, RpcError};
use crate::session::Session;
use crate::sync::lock;

const MAX_FILE: u64 = 64 << 10;
const MAX_NAME: usize = 64;
const MAX_DESCRIPTION: usize = 500;

/// A role that can be used.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Role {
    pub(crate) name: String,
    uri: String,
    description: String,
    /// None inherits the session's.
    pub(crate) model: Option<String>,
    effort: Option<String>,
    /// None stands for all that only look.
    tools: Option<Vec<String>>,
    prompt: String,
}

/// All roles of a workspace, and the files that are none.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Catalogue {
    pub(crate) roles: Vec<Role>,
    /// Name, address and what is wrong.
    errors: Vec<(String, String, String)>,
}

impl Catalogue {
    pub(crate) fn describe(&self) -> Value {
        let role = |role: &Role| {
            json!({
                "name": role.name, "sourceUri": role.uri, "description": role.description,
                "model": role.model, "reasoningEffort": role.effort, "tools": role.tools,
            })
        };
        let error = |(name, uri, error): &(String, String, String)| json!({"name": name, "sourceUri": uri, "error": error});
        json!({
            "agents": self.roles.iter().map(role).collect::<Vec<_>>(),
            "errors": self.errors.iter().map(error).collect::<Vec<_>>(),
        })
    }

    pub(crate) fn update(&self) -> Value {
        let mut update = self.describe();
        update["sessionUpdate"] = json!("subagent_definitions_update");
        update
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Role> {
        self.roles.iter().find(|role| role.name == name)
    }
}

/// The workspace's folder and the user's; the first one wins.
fn folders(agent: &Agent, cwd: &str) -> Vec<PathBuf> {
    let own = Path::new(cwd).join(".koda/agents");
    let global = agent.config.koda_home.as_ref().map(|home| home.join("agents"));
    std::iter::once(own).chain(global).collect()
}

/// Reads all files.
pub(crate) fn catalogue(agent: &Agent, cwd: &str) -> Catalogue {
    let mut found = Catalogue::default();
    for folder in folders(agent, cwd) {
        let mut paths: Vec<PathBuf> = fs::read_dir(folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .collect();
        paths.sort();
        for path in paths {
            let is_dir = path.is_dir();
            if path.extension().is_none_or(|end| end != "md") && !is_dir {
                continue;
            }
            let name = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            // A broken file of the workspace's reserves its name too.
            let is_taken =
                found.find(&name).is_some() || found.errors.iter().any(|(other, ..)| *other == name);
            if is_taken {
                continue;
            }
            let uri = uri_of(&path);
            match read(&path).and_then(|text| parse(&name, &uri, &text)) {
                Ok(role) => found.roles.push(role),
                Err(error) => found.errors.push((name, uri, error)),
            }
        }
    }
    found
}

fn uri_of(path: &Path) -> String {
    format!("file://{}", path.display())
}

fn read(path: &Path) -> Result<String, String> {
    let about = fs::symlink_metadata(path).map_err(|e| e.to_string())?;
    if !about.is_file() {
        return Err("a role is a plain file, no link and no folder".to_owned());
    }
    if about.len() > MAX_FILE {
        return Err(format!("a role has at most {MAX_FILE} bytes"));
    }
    fs::read_to_string(path).map_err(|e| e.to_string())
}

pub(crate) fn is_name(name: &str) -> bool {
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(legal)
}

fn parse(name: &str, uri: &str, text: &str) -> Result<Role, String> {
    let (head, body) = text
        .strip_prefix("---\n")
        .and_then(|rest| rest.split_once("\n---\n"))
        .ok_or("there is no head between two lines of '---'")?;
    let mut role = Role {
        name: String::new(),
        uri: uri.to_owned(),
        description: String::new(),
        model: None,
        effort: None,
        tools: None,
        prompt: body.trim().to_owned(),
    };
    for line in head.lines().filter(|line| !line.trim().is_empty()) {
        let (key, value) = line.split_once(':').ok_or("a line of the head has no ':'")?;
        let value = value.trim();
        match key.trim() {
            "name" => value.clone_into(&mut role.name),
            "description" => value.clone_into(&mut role.description),
            "model" => role.model = (value != "inherit").then(|| value.to_owned()),
            "reasoningEffort" => role.effort = Some(value.to_owned()),
            "tools" => {
                let list = value
                    .strip_prefix('[')
                    .and_then(|rest| rest.strip_suffix(']'))
                    .ok_or("tools is a list in brackets")?;
                let names = list.split(',').map(str::trim).filter(|tool| !tool.is_empty());
                role.tools = Some(names.map(str::to_owned).collect());
            }
            other => return Err(format!("unknown field '{other}'")),
        }
    }
    role.check(name)?;
    Ok(role)
}

impl Role {
    fn check(&self, name: &str) -> Result<(), String> {
        let bad = |what: &str| Err(what.to_owned());
        if self.name != name || !is_name(&self.name) {
            return bad("name must be the file's: lower-case letters, digits and hyphens, at most 64");
        }
        if self.description.is_empty() || self.description.chars().count() > MAX_DESCRIPTION {
            return bad("description must have 1 to 500 characters");
        }
        if self.prompt.is_empty() {
            return bad("the body is empty");
        }
        if let Some(effort) = self.effort.as_deref().filter(|e| !EFFORTS.contains(e)) {
            return Err(format!("unknown reasoningEffort '{effort}'"));
        }
        let unknown = self
            .tools
            .iter()
            .flatten()
            .find(|tool| !RESEARCH.contains(&tool.as_str()));
        match unknown {
            Some(tool) => Err(format!("'{tool}' is no tool that a role may have")),
            None => Ok(()),
        }
    }

    fn render(&self) -> String {
        let mut head = vec![
            format!("name: {}", self.name),
            format!("description: {}", self.description),
            format!("model: {}", self.model.as_deref().unwrap_or("inherit")),
        ];
        head.extend(
            self.effort
                .iter()
                .map(|effort| format!("reasoningEffort: {effort}")),
        );
        head.extend(
            self.tools
                .iter()
                .map(|tools| format!("tools: [{}]", tools.join(", "))),
        );
        format!("---\n{}\n---\n{}\n", head.join("\n"), self.prompt)
    }
}

/// `session/subagent_definition…`; what changed is told before the answer.
pub(crate) fn manage(
    agent: &Agent,
    session: &Session,
    method: &str,
    params: &Value,
) -> Result<Reply, RpcError> {
    let _files = lock(&session.subagents.files);
    let result = match method {
        "definitions" => return Ok(Ok(catalogue(agent, &session.cwd).describe()).into()),
        "definition_read" => return read_one(agent, session, params).map(|role| Ok(role).into()),
        "definition_create" => create(agent, session, params)?,
        "definition_write" => write(agent, session, params)?,
        "definition_delete" => {
            let path = named(agent, session, params)?;
            fs::remove_file(path).map_err(|e| RpcError::new(INTERNAL_ERROR, e.to_string()))?;
            json!({"deleted": true})
        }
        other => return Err(crate::acp::no_method(&format!("session/subagent_{other}"))),
    };
    let mut reply = Reply::from(Ok(result));
    let update = session.subagents.new_catalogue(catalogue(agent, &session.cwd));
    if let Some(update) = update.filter(|_| super::subagents::is_understood(agent)) {
        reply.before.push(agent.update_line(&session.id, &update));
    }
    Ok(reply)
}

/// The file of a pair of name and address that is in the catalogue.
fn named(agent: &Agent, session: &Session, params: &Value) -> Result<PathBuf, RpcError> {
    let (name, uri) = (text(params, "name")?, text(params, "sourceUri")?);
    let found = catalogue(agent, &session.cwd);
    let roles = found.roles.iter().map(|role| (&role.name, &role.uri));
    let errors = found.errors.iter().map(|(name, uri, _)| (name, uri));
    let known = roles.chain(errors).any(|(n, u)| n == name && u == uri);
    if !known {
        let details = format!("there is no role '{name}' at {uri}");
        return Err(refusal(INVALID_PARAMS, "role_not_found", details));
    }
    Ok(PathBuf::from(uri.trim_start_matches("file://")))
}

fn read_one(agent: &Agent, session: &Session, params: &Value) -> Result<Value, RpcError> {
    named(agent, session, params)?;
    let found = catalogue(agent, &session.cwd);
    let name = text(params, "name")?;
    let Some(role) = found.find(name) else {
        let error = found.errors.iter().find(|(other, ..)| other == name);
        let error = error.map_or("", |(_, _, error)| error.as_str());
        return Err(refusal(INVALID_PARAMS, "role_invalid", error));
    };
    Ok(json!({
        "name": role.name, "sourceUri": role.uri, "description": role.description, "model": role.model,
        "reasoningEffort": role.effort, "tools": role.tools, "prompt": role.prompt,
        "supportedTools": RESEARCH, "supportedReasoningEfforts": EFFORTS,
    }))
}

/// `Code Review!` becomes `code-review`.
fn kebab(name: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let name: String = name.chars().map(plain).collect();
    let words: Vec<&str> = name.split('-').filter(|word| !word.is_empty()).collect();
    words.join("-")
}

fn create(agent: &Agent, session: &Session, params: &Value) -> Result<Value, RpcError> {
    let name = kebab(text(params, "name")?);
    if !is_name(&name) {
        return Err(refusal(
            INVALID_PARAMS,
            "role_invalid",
            "no name can be made of this",
        ));
    }
    let russian = params["uiLanguage"]
        .as_str()
        .is_some_and(|l| l == "ru" || l.starts_with("ru-"));
    let (description, prompt) = if russian {
        ("Что делает эта роль", "Опишите, как работать субагенту.")
    } else {
        ("What this role does", "Describe how the subagent is to work.")
    };
    let folders = folders(agent, &session.cwd);
    let global = params["scope"] == "global" && folders.len() > 1;
    let folder = &folders[usize::from(global)];
    let path = folder.join(format!("{name}.md"));
    let role = Role {
        name,
        uri: uri_of(&path),
        description: description.to_owned(),
        model: None,
        effort: None,
        tools: None,
        prompt: prompt.to_owned(),
    };
    let made = fs::create_dir_all(folder).and_then(|()| {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&path)?;
        file.write_all(role.render().as_bytes())
    });
    made.map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => refusal(
            INVALID_PARAMS,
            "role_exists",
            format!("{} is there already", path.display()),
        ),
        _ => RpcError::new(INTERNAL_ERROR, e.to_string()),
    })?;
    Ok(json!({"name": role.name, "sourceUri": role.uri}))
}

/// Also mends a broken file. One that the catalogue would refuse is left as it is.
fn write(agent: &Agent, session: &Session, params: &Value) -> Result<Value, RpcError> {
    let path = named(agent, session, params)?;
    let optional = |name: &str| params[name].as_str().map(str::to_owned);
    let tools = params["tools"].as_array().map(|tools| {
        let names = tools.iter().filter_map(|tool| tool.as_str().map(str::to_owned));
        names.collect()
    });
    let role = Role {
        name: text(params, "name")?.to_owned(),
        uri: uri_of(&path),
        description: text(params, "description")?.to_owned(),
        model: optional("model"),
        effort: optional("reasoningEffort"),
        tools,
        prompt: text(params, "prompt")?.trim().to_owned(),
    };
    let rendered = role.render();
    parse(&role.name, &role.uri, &rendered)
        .map_err(|error| refusal(INVALID_PARAMS, "role_invalid", error))?;
    fs::write(path, rendered).map_err(|e| RpcError::new(INTERNAL_ERROR, e.to_string()))?;
    Ok(json!({"name": role.name, "sourceUri": role.uri}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_what_its_file_says_and_nothing_else() {
        let text = "---\nname: review\ndescription: Looks\nmodel: inherit\ntools: [glob, read_file]\n---\nBe strict.\n";
        let role = parse("review", "file:///review.md", text).unwrap();
        assert_eq!(
            role.tools.as_deref(),
            Some(&["glob".to_owned(), "read_file".to_owned()][..])
        );
        assert_eq!(parse("review", "file:///review.md", &role.render()), Ok(role));
        for (bad, what) in [
            (text.replace("Be strict.", " "), "body"),
            (text.replace("model", "colour"), "unknown field"),
            (text.replace("glob", "run_shell_command"), "no tool"),
            (text.replace("review", "Review"), "name"),
            ("no head".to_owned(), "head"),
        ] {
            let error = parse("review", "", &bad).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
        assert_eq!(kebab(" Code  Review! "), "code-review");
    }
}
