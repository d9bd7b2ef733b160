//! The store on a real PostgreSQL: `DATABASE_URL` names a server on which databases may be made.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod all_events;
mod elicitations;
mod journal;
mod rows;
mod servers;
mod subagents;
mod support;
