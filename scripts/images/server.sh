#!/usr/bin/env bash
# Builds kandev/server:latest around a release binary built here, so that no image with a Rust toolchain is needed.
# With a registry, `docker build -f dockerfiles/server/Dockerfile .` does it all inside.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../lib.sh"
cd "$root"

# The binary is linked against this machine's C library: the image's must not be older.
case $(. /etc/os-release && echo "${VERSION_CODENAME:-}") in
bookworm | jammy) base=bookworm ;;
*) base=trixie ;;
esac
base_image=$(scripts/images/base.sh "$base")
say "building kandev (release)"
cargo build --release -p kandev
context=$(mktemp -d -t kandev-image.XXXXXX)
trap 'rm -rf "$context"' EXIT
cp "$target_dir/release/kandev" "$context"
say "building kandev/server:latest"
docker_build --build-arg BASE_IMAGE="$base_image" -f dockerfiles/server/Dockerfile.prebuilt \
    -t kandev/server:latest "$context"
