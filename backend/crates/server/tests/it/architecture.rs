//! The arrows between the crates, and what each leaves to the others (`STYLE.md` of the design, "Layout").

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Each crate, and those of ours that it may use.
const ARROWS: &[(&str, &[&str])] = &[
    ("kandev-domain", &[]),
    ("kandev-acp", &["kandev-domain"]),
    ("kandev-helper", &[]),
    ("kandev-runtime", &["kandev-helper"]),
    ("kandev-store", &["kandev-domain"]),
    (
        "kandev-orchestrator",
        &["kandev-domain", "kandev-acp", "kandev-runtime", "kandev-store"],
    ),
    (
        "kandev",
        &[
            "kandev-domain",
            "kandev-acp",
            "kandev-runtime",
            "kandev-store",
            "kandev-orchestrator",
        ],
    ),
    ("kandev-mock-agent", &[]),
    (
        "kandev-bench",
        &["kandev-domain", "kandev-acp", "kandev-runtime", "kandev-store"],
    ),
];

/// What must not be found under a crate, however deep: no HTTP server, SQL or engine where it has no business.
const WITHOUT: &[(&str, &[&str])] = &[
    (
        "kandev-domain",
        &["tokio", "axum", "hyper", "sqlx", "agent-client-protocol-schema"],
    ),
    ("kandev-acp", &["axum", "hyper", "sqlx", "bollard"]),
    ("kandev-helper", &["tokio", "axum", "hyper", "sqlx", "serde"]),
    (
        "kandev-runtime",
        &["axum", "sqlx", "agent-client-protocol-schema"],
    ),
    (
        "kandev-store",
        &["axum", "hyper", "bollard", "agent-client-protocol-schema"],
    ),
    ("kandev-orchestrator", &["axum"]),
    ("kandev-mock-agent", &["axum", "hyper", "sqlx"]),
    ("kandev-bench", &["axum"]),
];

struct Graph {
    /// Package id to name.
    names: BTreeMap<String, String>,
    /// Package id to the ids that its own code is compiled with.
    edges: BTreeMap<String, BTreeSet<String>>,
    ours: BTreeMap<String, String>,
}

impl Graph {
    fn read() -> Self {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version=1", "--offline", "--locked"])
            .arg(concat!(
                "--manifest-path=",
                env!("CARGO_MANIFEST_DIR"),
                "/Cargo.toml"
            ))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let list = |value: &Value| value.as_array().unwrap().clone();
        let names: BTreeMap<_, _> = list(&metadata["packages"])
            .iter()
            .map(|p| (text(&p["id"]), text(&p["name"])))
            .collect();
        let ours = list(&metadata["workspace_members"])
            .iter()
            .map(|id| (names[id.as_str().unwrap()].clone(), text(id)))
            .collect();
        let edges = list(&metadata["resolve"]["nodes"])
            .iter()
            .map(|node| {
                let used = list(&node["deps"])
                    .iter()
                    .filter(|dep| list(&dep["dep_kinds"]).iter().any(|kind| kind["kind"] != "dev"))
                    .map(|dep| text(&dep["pkg"]))
                    .collect();
                (text(&node["id"]), used)
            })
            .collect();
        Self { names, edges, ours }
    }

    fn uses(&self, name: &str) -> BTreeSet<&str> {
        self.edges[&self.ours[name]]
            .iter()
            .map(|id| self.names[id].as_str())
            .collect()
    }

    fn uses_in_the_end(&self, name: &str) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        let mut to_see = vec![&self.ours[name]];
        while let Some(id) = to_see.pop() {
            to_see.extend(
                self.edges[id]
                    .iter()
                    .filter(|id| found.insert(self.names[*id].as_str())),
            );
        }
        found
    }
}

#[test]
fn the_crates_keep_their_arrows() {
    let graph = Graph::read();
    let known: BTreeSet<_> = ARROWS.iter().map(|(name, _)| *name).collect();
    let ours: BTreeSet<_> = graph.ours.keys().map(String::as_str).collect();
    assert_eq!(ours, known, "a crate without arrows");
    for (name, allowed) in ARROWS {
        let used: BTreeSet<_> = graph.uses(name).intersection(&ours).copied().collect();
        let allowed: BTreeSet<_> = allowed.iter().copied().collect();
        assert!(
            used.is_subset(&allowed),
            "{name} uses {:?}",
            used.difference(&allowed).collect::<Vec<_>>()
        );
    }
    // The graph is real: what is allowed where the crates meet is also used.
    let orchestrator = graph.uses("kandev-orchestrator");
    assert!(
        ARROWS[5].1.iter().all(|name| orchestrator.contains(name)),
        "{orchestrator:?}"
    );
}

#[test]
fn each_crate_leaves_to_the_others_what_is_theirs() {
    let graph = Graph::read();
    for (name, without) in WITHOUT {
        let used = graph.uses_in_the_end(name);
        for unwanted in *without {
            assert!(!used.contains(unwanted), "{name} has {unwanted} under it");
        }
    }
    // The look goes deep: each unwanted name is found where it belongs.
    let server = graph.uses_in_the_end("kandev");
    for name in ["tokio", "axum", "hyper", "sqlx"] {
        assert!(server.contains(name), "{name} is nowhere");
    }
}
