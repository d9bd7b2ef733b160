//! What tests share.

#[path = "../../../../server/tests/it/support/database.rs"]
#[expect(dead_code, reason = "the server's tests take their database away too")]
mod database;
mod faulty;
mod world;

pub(crate) use database::TestDatabase;
pub(crate) use faulty::{Fault, FaultyRuntime, Moment, Step};
pub(crate) use world::{World, launch};
