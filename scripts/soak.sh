#!/usr/bin/env bash
# Rounds of kills of the server, PostgreSQL and the engine, with agents in mid-turn: ROUNDS of them (100), drawn by SEED.
# Prints its figures; ends non-zero when anything was lost without a recorded gap, came twice, or did not end.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$root"

[ "$(id -u)" = 0 ] || die "this runs an engine of its own, as root only"
scripts/setup/engine.sh
scripts/setup/postgres.sh >/dev/null
scripts/build-mock-image.sh
export KANDEV_SOAK_ROUNDS=${ROUNDS:-100}
[ -z "${SEED:-}" ] || export KANDEV_SOAK_SEED=$SEED
cargo test --quiet -p kandev --features soak --test it -- --exact --nocapture soak::rounds_of_kills
