#!/usr/bin/env bash
# Benchmarks against a real engine and a real PostgreSQL. Figures go to target/bench.json too.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$root"

need python3 python3
scripts/setup/engine.sh
scripts/setup/postgres.sh >/dev/null
scripts/build-mock-image.sh
say "building kandev (release)"
cargo build --quiet --release -p kandev
python3 scripts/py/bench_launch.py "$target_dir/release/kandev" "$target_dir/bench.json"
