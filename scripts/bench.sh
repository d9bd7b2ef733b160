#!/usr/bin/env bash
# Benchmarks against a real engine and a real PostgreSQL, which is set up as in production. BENCH="B1 B3" takes some only.
# Figures go to target/bench.json too.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$root"

scripts/setup/engine.sh
scripts/build-mock-image.sh
say "building kandev (release)"
cargo build --quiet --release -p kandev -p kandev-bench

trap 'scripts/setup/test-postgres.sh stop durable' EXIT
cluster=$(scripts/setup/test-postgres.sh start durable)
# shellcheck disable=SC2086 # a list
"$target_dir/release/kandev-bench" --kandev "$target_dir/release/kandev" --cluster "$cluster" \
    --json "$target_dir/bench.json" ${BENCH:-}
