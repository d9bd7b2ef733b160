#!/usr/bin/env bash
# Makes sure that cargo-nextest is there. Succeeds without it: `make test` then runs `cargo test`.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../lib.sh"

have cargo-nextest && exit 0
say "installing cargo-nextest (several minutes, once)"
cargo install --locked --quiet cargo-nextest || say "cargo-nextest could not be installed: cargo test stands in"
