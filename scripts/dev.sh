#!/usr/bin/env bash
# From a fresh machine to a service on :8080 with an agent that needs no key.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$root"

listen=${KANDEV_LISTEN:-127.0.0.1:8080}
demo=${KANDEV_DEMO_DIR:-$HOME/kandev-demo}

have cargo || die "Rust is missing: install it with rustup"
need cc gcc libc6-dev
scripts/setup/engine.sh
scripts/setup/postgres.sh >/dev/null
scripts/build-mock-image.sh
# The debug build is the one that tests use: nothing is compiled twice.
say "building kandev"
cargo build -p kandev

mkdir -p "$demo"
cat >&2 <<HELP
==> kandev listens on http://$listen in a moment. In another terminal, this launches an agent and waits for its first turn:

curl -s http://$listen/api/v1/agents/launch -H 'content-type: application/json' \\
  -d '{"agent_type":"mock-agent","workspace_path":"$demo","prompt":"Say hello","wait":"turn"}'

==> What it said, with the id of that answer: curl -s http://$listen/api/v1/agents/ID/turns
==> API: http://$listen/docs   Stop with Ctrl-C.
HELP
exec "$target_dir/debug/kandev" serve --listen "$listen"
