//! What tests share.

mod cluster;
mod database;
mod engine;
mod process;
mod runtime;
mod server;
mod small_postgres;
mod socket;
mod sse;
mod stack;

pub(crate) use cluster::Cluster;
pub(crate) use database::TestDatabase;
pub(crate) use engine::Engine;
pub(crate) use process::Kandev;
pub(crate) use runtime::FakeRuntime;
pub(crate) use server::TestServer;
pub(crate) use small_postgres::SmallPostgres;
pub(crate) use socket::{Got, Socket};
pub(crate) use sse::{Frame, Reader};
pub(crate) use stack::{Answer, DEAF, FAULT, FAULT_EXIT_CODE, LIMIT, Stack, docker};

use std::os::unix::fs::PermissionsExt as _;

/// A temporary directory that PostgreSQL's user can pass, as it must when the tests run as root.
pub(crate) fn passable_dir() -> tempfile::TempDir {
    let mode = std::fs::Permissions::from_mode(0o711);
    tempfile::Builder::new()
        .prefix("kandev-it-")
        .permissions(mode)
        .tempdir()
        .unwrap()
}
