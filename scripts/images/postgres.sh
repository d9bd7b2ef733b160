#!/usr/bin/env bash
# Makes sure that postgres:15 is there: the official image where a registry answers, else a stand-in built here.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../lib.sh"

image=postgres:15
image_exists "$image" && exit 0
if timeout 120 docker pull --quiet "$image" >/dev/null 2>&1; then
    exit 0
fi
base_image=$("$root/scripts/images/base.sh" bookworm)
say "no registry has $image: building a stand-in from Debian's package"
docker_build --build-arg BASE_IMAGE="$base_image" --label kandev.stand-in=postgres -t "$image" "$root/dockerfiles/postgres"
