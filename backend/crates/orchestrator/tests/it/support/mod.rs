//! What tests share.

#[path = "../../../../server/tests/it/support/database.rs"]
mod database;
mod faulty;
mod world;

pub(crate) use database::TestDatabase;
pub(crate) use faulty::{Fault, FaultyRuntime, Moment, Step};
pub(crate) use world::{World, launch};
