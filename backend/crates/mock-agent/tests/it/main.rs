//! The built binary over pipes.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail by panicking"
)]

mod acp;
mod cancel;
mod directives;
mod faults;
mod kandev;
mod koda;
mod legacy;
mod lifecycle;
mod support;
