#!/usr/bin/env bash
# compose.sh up|down: the stack of docker-compose.yml, with images built here.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$root"

compose() {
    if docker compose version >/dev/null 2>&1; then
        docker compose "$@"
    else
        docker-compose "$@"
    fi
}

scripts/setup/engine.sh
docker compose version >/dev/null 2>&1 || need docker-compose docker-compose
case ${1:-} in
up)
    scripts/images/postgres.sh
    scripts/images/server.sh
    scripts/build-mock-image.sh
    as_root mkdir -p "${KANDEV_WORKSPACES:-/srv/kandev/workspaces}"
    compose up -d --no-build
    say "waiting for kandev"
    url=http://127.0.0.1:${KANDEV_PORT:-8080}
    need curl curl
    wait_until 90 curl -fsS "$url/ready" || { compose logs --tail 30 kandev >&2; die "kandev is not ready"; }
    say "kandev is ready on $url; workspaces are under ${KANDEV_WORKSPACES:-/srv/kandev/workspaces}"
    ;;
down) compose down ;;
*) die "usage: compose.sh up|down" ;;
esac
