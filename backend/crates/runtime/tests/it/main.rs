//! The Docker runtime against a real engine, and against made-up ones where a real one cannot be made to misbehave.
//!
//! Needs an engine on `DOCKER_HOST` (a unix socket) or the default socket, and a static `/bin/busybox`
//! (package `busybox-static`). Brings its own image.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod engine;
mod exec;
mod exit;
mod fake;
mod files;
mod isolation;
mod lifecycle;
mod logs;
mod proxy;
mod raw;
mod stdio;
mod world;
