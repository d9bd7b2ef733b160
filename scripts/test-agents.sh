#!/usr/bin/env bash
# fast-agent, kimi-code and codex-acp in containers behind a real kandev; the last two talk to a scripted model provider
# on a network without a way out. MOCKLLM names that provider's script.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$root"

provider=${MOCKLLM:-$root/../shared/tools/mockllm.py}
[ -f "$provider" ] || die "no scripted model provider at $provider: set MOCKLLM to mockllm.py's path"
provider=$(readlink -f "$provider")
need python3 python3
scripts/setup/engine.sh
scripts/setup/postgres.sh >/dev/null
scripts/images/build.sh fast-agent kimi-code codex-acp
say "building kandev"
cargo build --quiet -p kandev

network=kandev-test-agents-$$
model=kandev-test-mockllm-$$
cleanup() {
    docker rm -f "$model" >/dev/null 2>&1 || true
    docker network rm "$network" >/dev/null 2>&1 || true
}
trap cleanup EXIT
docker network create --internal "$network" >/dev/null
docker run -d --init --name "$model" --network "$network" --network-alias mockllm \
    -v "$provider:/mockllm.py:ro" "$(scripts/images/base.sh python3.13)" \
    python3 /mockllm.py --host 0.0.0.0 --port 8199 >/dev/null

python3 scripts/py/test_agents.py "$target_dir/debug/kandev" "$network"
