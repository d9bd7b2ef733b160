//! The server as its callers see it. Needs a PostgreSQL in `DATABASE_URL` whose user may create databases, and the
//! server binaries of PostgreSQL for the private cluster.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a helper of a test fails the test"
)]

mod agent_sessions;
mod all_events;
mod architecture;
mod asked;
mod asks;
mod bad_input;
mod bounds;
mod cancel_escalation;
mod cancel_restarts;
mod config;
mod containers;
mod directories;
mod disk_full;
mod elicitations;
mod endings;
mod engine_outage;
mod field_cases;
mod handshake;
mod image_user;
mod inside;
mod kinds;
mod koda;
mod legacy;
mod logs;
mod main_job;
mod mcp_servers;
mod missed_output;
mod outage;
mod ownership;
mod permissions;
mod private_postgres;
mod prompt_content;
mod protocol;
mod races;
mod real_agents;
mod reconcile;
mod recovery;
mod refusals;
mod resume;
mod retention;
mod schema;
mod secrets;
mod serve;
mod service;
mod session_restarts;
mod session_state;
#[cfg(feature = "soak")]
mod soak;
mod streams;
mod strict;
mod support;
mod turns;
mod usage;
mod websocket;
