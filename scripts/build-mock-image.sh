#!/usr/bin/env bash
# Builds the image of the mock agent around a static binary. Silent when the image is up to date.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$root"

image=${MOCK_IMAGE:-kandev/mock-agent:latest}
folder=dockerfiles/mock-agent
label=dev.kandev.source

# The engine's architecture, not this machine's: they differ with a remote engine.
arch=$(docker version --format '{{.Server.Arch}}')
case $arch in
    amd64) target=x86_64-unknown-linux-gnu ;;
    arm64) target=aarch64-unknown-linux-gnu ;;
    *) die "no mock agent for an engine on $arch" ;;
esac

# With --target these flags are not those of build scripts, and what was built for the host stays as it is.
RUSTFLAGS='-C target-feature=+crt-static' cargo build --quiet --release -p kandev-mock-agent --target "$target"
binary=$target_dir/$target/release/kandev-mock-agent

source_hash=$(cat "$binary" "$folder/Dockerfile" | sha256sum | cut -d ' ' -f 1)
if [ "$(image_label "$image" "$label")" = "$source_hash" ]; then
    exit 0
fi

say "building $image"
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
cp "$binary" "$context/mock-agent"
docker_build --label "$label=$source_hash" -t "$image" -f "$folder/Dockerfile" "$context"
