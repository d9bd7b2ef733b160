#!/usr/bin/env bash
# Real agents in containers behind a real kandev, those that need a model on a scripted provider, on a network without a way
# out. MOCKLLM names that provider's script; AGENTS those to try (all).
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
scripts/images/build.sh fast-agent kimi-code codex-acp ts-sdk-example py-sdk-example
say "building kandev"
cargo build --quiet -p kandev

network=kandev-test-agents-$$
model=kandev-test-mockllm-$$
mcp=kandev-test-mcp-$$
asked=$(mktemp -d -t kandev-asked.XXXXXX)
cleanup() {
    docker rm -f "$model" "$mcp" >/dev/null 2>&1 || true
    docker network rm "$network" >/dev/null 2>&1 || true
    rm -rf "$asked"
}
trap cleanup EXIT
# The provider writes it as this user, who reads it.
: >"$asked/requests"
docker network create --internal "$network" >/dev/null
docker run -d --init --name "$model" --network "$network" --network-alias mockllm --user "$(id -u):$(id -g)" \
    -v "$provider:/mockllm.py:ro" -v "$asked:/asked" "$(scripts/images/base.sh python3.13)" \
    python3 /mockllm.py --host 0.0.0.0 --port 8199 --log /asked/requests >/dev/null
docker run -d --init --name "$mcp" --network "$network" --network-alias mcpprobe \
    -v "$root/scripts/py/agents/mcp_probe.py:/mcp_probe.py:ro" "$(scripts/images/base.sh python3.13)" \
    python3 /mcp_probe.py 8200 >/dev/null

# shellcheck disable=SC2086 # several names
python3 scripts/py/test_agents.py "$target_dir/debug/kandev" "$network" "$asked/requests" ${AGENTS:-}
