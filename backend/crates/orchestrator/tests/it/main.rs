//! The orchestrator over a real engine and a real PostgreSQL, with faults put between it and the engine on purpose. Needs
//! `DATABASE_URL`, whose user may create databases, and the mock agent's image.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a helper of a test fails the test"
)]

mod agent_faults;
mod engine_faults;
mod reconcile;
mod support;
