//! Directories that belong to an agent's work beside its working directory.

use kandev_domain::AgentType;
use kandev_domain::agent_type::{MountTemplate, is_plain_path};

use super::{AdditionalDirectory, LaunchError};
use crate::settings::Settings;
use crate::workspace;

/// How many a launch may name.
const MAX: usize = 32;
/// Where nothing is mounted: what every container needs as it is, and kandev's own.
const RESERVED: [&str; 14] = [
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr",
    "/var/run", "/.kandev",
];
const FIELD: &str = "additional_directories";

/// Checks a launch's directories, and follows the links of those that are to be mounted. Reads the file system.
pub(crate) fn resolve(
    given: &[AdditionalDirectory],
    agent_type: &AgentType,
    settings: &Settings,
) -> Result<Vec<AdditionalDirectory>, LaunchError> {
    let invalid = |problem: String| LaunchError::invalid(FIELD, problem);
    if given.len() > MAX {
        return Err(invalid(format!("at most {MAX} directories")));
    }
    let mut resolved: Vec<AdditionalDirectory> = Vec::with_capacity(given.len());
    for (index, directory) in given.iter().enumerate() {
        let path = &directory.path;
        if !is_plain_path(path) {
            return Err(invalid(format!(
                "the path at {index} must be absolute, without '.' and '..', and not '/'"
            )));
        }
        if resolved.iter().any(|other| other.path == *path) {
            return Err(invalid(format!("the path at {index} is there twice")));
        }
        let mut directory = directory.clone();
        if let Some(source) = &directory.source {
            let taken = std::iter::once(agent_type.working_dir.as_str())
                .chain(agent_type.mounts.iter().map(|mount| mount.target.as_str()))
                .chain(
                    resolved
                        .iter()
                        .filter(|other| other.source.is_some())
                        .map(|other| other.path.as_str()),
                );
            for other in taken {
                if is_within(path, other) || is_within(other, path) {
                    return Err(invalid(format!(
                        "the path at {index} lies in, or around, another mount or the working directory"
                    )));
                }
            }
            if RESERVED.iter().any(|reserved| is_within(path, reserved)) {
                return Err(invalid(format!("nothing can be mounted at the path at {index}")));
            }
            let found = workspace::resolve(source, settings).map_err(|e| {
                let problem = e.to_string().replace("the workspace", "it");
                invalid(format!("the source at {index}: {problem}"))
            })?;
            directory.source = Some(found.to_string_lossy().into_owned());
        } else if directory.read_only {
            return Err(invalid(format!(
                "the directory at {index} has no 'source', so it cannot be made read-only"
            )));
        }
        resolved.push(directory);
    }
    Ok(resolved)
}

/// Adds them to the instance's own copy of its type: mounts, what the agent is told of, and what its requests for files reach
/// follow from there, also after a restart.
pub(crate) fn add(agent_type: &mut AgentType, directories: &[AdditionalDirectory]) {
    for directory in directories {
        if let Some(source) = &directory.source {
            agent_type.mounts.push(MountTemplate {
                source: source.clone(),
                target: directory.path.clone(),
                read_only: directory.read_only,
            });
        }
        if !agent_type.additional_directories.contains(&directory.path) {
            agent_type.additional_directories.push(directory.path.clone());
        }
    }
}

fn is_within(path: &str, directory: &str) -> bool {
    let rest = path.strip_prefix(directory.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent_type() -> AgentType {
        let mount = serde_json::json!({"source": "{workspace}", "target": "/workspace"});
        let entry = serde_json::json!({"id": "a", "name": "A", "image": "i", "mounts": [mount]});
        serde_json::from_value(entry).unwrap()
    }

    fn directory(path: &str, source: Option<&str>) -> AdditionalDirectory {
        AdditionalDirectory {
            path: path.to_owned(),
            source: source.map(str::to_owned),
            read_only: false,
        }
    }

    #[test]
    fn mounts_meet_nothing_else_and_sources_are_workspaces() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        let settings = Settings {
            workspace_roots: vec![root.clone()],
            ..Settings::default()
        };
        let source = root.join("a");
        let source = source.to_str().unwrap();
        let check = |given: &[AdditionalDirectory]| resolve(given, &agent_type(), &settings);
        let link = root.join("link");
        std::os::unix::fs::symlink("a", &link).unwrap();
        let good = [directory("/data", None), directory("/more", link.to_str())];
        assert_eq!(check(&good).unwrap()[1].source.as_deref(), Some(source));
        assert!(check(&[directory("/workspace/sub", None)]).is_ok());
        for bad in [
            directory("relative", None),
            directory("/", None),
            directory("/a/../b", None),
            directory("/workspace", Some(source)),
            directory("/workspace/sub", Some(source)),
            directory("/etc/x", Some(source)),
            directory("/.kandev", Some(source)),
            directory("/ok", Some("/etc")),
            directory("/ok", Some("relative")),
            directory("/ok", Some(root.join("missing").to_str().unwrap())),
            AdditionalDirectory {
                read_only: true,
                ..directory("/ok", None)
            },
        ] {
            let refused = check(std::slice::from_ref(&bad));
            assert!(
                matches!(refused, Err(LaunchError::Invalid { field: FIELD, .. })),
                "{bad:?}: {refused:?}"
            );
        }
        for two in [["/x", "/x"], ["/x", "/x/y"], ["/x/y", "/x"]] {
            assert!(
                check(&two.map(|path| directory(path, Some(source)))).is_err(),
                "{two:?}"
            );
        }
        assert!(check(&[directory("/x", Some(source)), directory("/xy", Some(source))]).is_ok());
        let mut many = Vec::new();
        many.resize_with(MAX + 1, || directory("/x", None));
        assert!(check(&many).is_err());
    }

    #[test]
    fn they_become_part_of_the_type() {
        let mut entry = agent_type();
        add(
            &mut entry,
            &[directory("/data", None), directory("/more", Some("/host"))],
        );
        assert_eq!(entry.additional_directories, ["/data", "/more"]);
        assert_eq!(
            (entry.mounts[1].source.as_str(), entry.mounts.len()),
            ("/host", 2)
        );
        assert_eq!(entry.file_roots(), ["/workspace", "/workspace", "/more", "/data"]);
    }
}
