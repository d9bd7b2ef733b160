//! The catalogue of agent types: those built in, and the operator's own, which win.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kandev_domain::AgentType;
use kandev_domain::agent_type::InvalidAgentType;

/// The entries that come with kandev, by file name.
const BUILT_IN: [(&str, &str); 7] = [
    ("augment-agent", include_str!("../catalogue/augment-agent.toml")),
    ("mock-agent", include_str!("../catalogue/mock-agent.toml")),
    ("ts-sdk-example", include_str!("../catalogue/ts-sdk-example.toml")),
    ("py-sdk-example", include_str!("../catalogue/py-sdk-example.toml")),
    ("fast-agent", include_str!("../catalogue/fast-agent.toml")),
    ("kimi-code", include_str!("../catalogue/kimi-code.toml")),
    ("codex-acp", include_str!("../catalogue/codex-acp.toml")),
];

/// A catalogue that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// The directory or a file cannot be read.
    #[error("{path}: {source}")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not TOML, or not an entry.
    #[error("{path}: {source}")]
    Malformed {
        /// Which.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// An entry that cannot be right.
    #[error("{path}: {source}")]
    Invalid {
        /// Which.
        path: PathBuf,
        /// Why.
        source: InvalidAgentType,
    },
    /// The file `a.toml` holds the entry `b`.
    #[error("{path}: the file is named after its id, which is '{id}'")]
    Misnamed {
        /// Which.
        path: PathBuf,
        /// The id in it.
        id: String,
    },
}

/// All agent types by id.
#[derive(Debug, Clone, Default)]
pub struct Catalogue(BTreeMap<String, AgentType>);

impl Catalogue {
    /// The built-in entries, overridden and added to by the `*.toml` files of `directory`.
    pub fn load(directory: Option<&Path>) -> Result<Self, CatalogueError> {
        let mut types = BTreeMap::new();
        for (name, text) in BUILT_IN {
            let entry = parse(&PathBuf::from(format!("{name}.toml")), text)?;
            types.insert(entry.id.clone(), entry);
        }
        for path in directory.map(toml_files).transpose()?.unwrap_or_default() {
            let text = std::fs::read_to_string(&path).map_err(|source| CatalogueError::Unreadable {
                path: path.clone(),
                source,
            })?;
            let entry = parse(&path, &text)?;
            types.insert(entry.id.clone(), entry);
        }
        Ok(Self(types))
    }

    /// One entry.
    pub fn get(&self, id: &str) -> Option<&AgentType> {
        self.0.get(id)
    }

    /// All entries by id, ascending.
    pub fn all(&self) -> impl Iterator<Item = &AgentType> {
        self.0.values()
    }
}

fn toml_files(directory: &Path) -> Result<Vec<PathBuf>, CatalogueError> {
    let unreadable = |source| CatalogueError::Unreadable {
        path: directory.to_owned(),
        source,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|e| e == "toml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn parse(path: &Path, text: &str) -> Result<AgentType, CatalogueError> {
    let entry: AgentType = toml::from_str(text).map_err(|e| CatalogueError::Malformed {
        path: path.to_owned(),
        source: Box::new(e),
    })?;
    entry.validate().map_err(|source| CatalogueError::Invalid {
        path: path.to_owned(),
        source,
    })?;
    if path.file_stem().is_none_or(|stem| stem != entry.id.as_str()) {
        return Err(CatalogueError::Misnamed {
            path: path.to_owned(),
            id: entry.id,
        });
    }
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_entries_are_valid_and_augment_is_as_the_seed_says() {
        let catalogue = Catalogue::load(None).unwrap();
        let augment = catalogue.get("augment-agent").unwrap();
        assert_eq!(augment.image, "kandev/augment-agent:latest");
        assert_eq!((augment.memory_mb, augment.timeout_seconds), (4096, 3600));
        assert!((augment.cpu_cores - 2.0).abs() < f64::EPSILON);
        assert_eq!(augment.working_dir, "/workspace");
        assert_eq!(
            augment.capabilities,
            [
                "code_generation",
                "code_review",
                "refactoring",
                "testing",
                "shell_execution"
            ]
        );
        assert_eq!(augment.required_env, ["AUGMENT_SESSION_AUTH"]);
        assert_eq!(augment.resume_env.as_deref(), Some("AUGGIE_SESSION_ID"));
        assert_eq!(augment.session_metadata_key.as_deref(), Some("auggie_session_id"));
        let targets: Vec<_> = augment
            .mounts
            .iter()
            .map(|m| (m.source.as_str(), m.target.as_str()))
            .collect();
        assert_eq!(
            targets,
            [
                ("{workspace}", "/workspace"),
                ("{session_store}", "/root/.augment/sessions")
            ]
        );
        assert!(catalogue.get("mock-agent").unwrap().enabled);
    }

    #[test]
    fn the_operators_entries_win_and_mistakes_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("mock-agent.toml", "id = 'mock-agent'\nname = 'Mine'\nimage = 'x'");
        write("notes.txt", "not an entry");
        let catalogue = Catalogue::load(Some(dir.path())).unwrap();
        assert_eq!(catalogue.get("mock-agent").unwrap().name, "Mine");

        write("b.toml", "id = 'b'\nname = 'B'\nimage = 'x'\nmemroy_mb = 5");
        let error = Catalogue::load(Some(dir.path())).unwrap_err().to_string();
        assert!(error.contains("b.toml") && error.contains("memroy_mb"), "{error}");
        write("b.toml", "id = 'c'\nname = 'B'\nimage = 'x'");
        assert!(matches!(
            Catalogue::load(Some(dir.path())),
            Err(CatalogueError::Misnamed { .. })
        ));
        write("b.toml", "id = 'b'\nname = 'B'\nimage = 'x'\ntimeout_seconds = 0");
        assert!(matches!(
            Catalogue::load(Some(dir.path())),
            Err(CatalogueError::Invalid { .. })
        ));
        assert!(matches!(
            Catalogue::load(Some(&dir.path().join("nowhere"))),
            Err(CatalogueError::Unreadable { .. })
        ));
    }
}
