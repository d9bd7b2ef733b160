#!/usr/bin/env bash
# All checks and tests, against a real engine and a real PostgreSQL. Ends non-zero on any failure; the test runner's
# summary is the last thing printed.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$root"

have cargo || die "Rust is missing: install it with rustup"
need cc gcc libc6-dev
[ -x /bin/busybox ] || apt_install busybox-static
scripts/setup/engine.sh
scripts/setup/postgres.sh >/dev/null
scripts/setup/nextest.sh
scripts/build-mock-image.sh
scripts/images/build.sh shell-agent ts-sdk-example py-sdk-example

# All that the lock file names, also for other platforms: a test asks cargo about it without a network.
say "cargo fetch"
cargo fetch --quiet --locked
say "cargo fmt --check"
cargo fmt --all --check
say "cargo clippy"
cargo clippy --quiet --workspace --all-targets -- -D warnings
# Not of the workspace, since a fuzzer wants flags of its own; that it builds is checked without them.
say "fuzz target"
cargo check --quiet --locked --target-dir target/fuzz --manifest-path backend/crates/acp/fuzz/Cargo.toml
if have cargo-deny; then
    say "cargo deny"
    cargo deny --offline --log-level error check bans licenses sources
fi
if have shellcheck; then
    say "shellcheck"
    git ls-files -z '*.sh' .ci/run | xargs -0 shellcheck -x
fi

trap 'scripts/setup/test-postgres.sh stop' EXIT
DATABASE_URL=$(scripts/setup/test-postgres.sh start)
export DATABASE_URL

# Containers of test deployments, which all have names of this form; a `make dev` beside us has not.
test_containers() {
    docker ps -a --filter label=kandev.managed --format '{{.ID}} {{.Label "kandev.owner"}} {{.Names}}' |
        grep -E '^[0-9a-f]+ (kandev-)?test-' | sort || true
}

before=$(test_containers)
say "tests"
status=0
if have cargo-nextest; then
    # The runner counts, so its summary comes last; doc tests are not its business.
    cargo test --quiet --workspace --doc
    cargo nextest run --workspace || status=$?
else
    cargo test --workspace || status=$?
fi

left=$(comm -13 <(printf '%s\n' "$before") <(test_containers))
if [ -n "$left" ]; then
    printf 'error: the tests left containers behind:\n%s\n' "$left" >&2
    status=1
fi
exit "$status"
