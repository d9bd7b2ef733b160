#!/usr/bin/env bash
# Builds kandev/<folder>:latest for the folders of dockerfiles/ it is given, on a machine without an image registry, and
# skips those whose inputs have not changed. Node.js and Python packages are fetched here, on the host, whose
# certificates and proxies a build step would not have.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../lib.sh"

# Which base stands in for the dockerfile's default, by folder.
base_of() {
    case $1 in
    augment-agent | codex-acp | kimi-code | ts-sdk-example) echo node22 ;;
    py-sdk-example) echo python3.11 ;;
    fast-agent) echo python3.13 ;;
    shell-agent) echo bookworm ;;
    *) die "dockerfiles/$1 is not built by this script" ;;
    esac
}

# What the image is made from, as a hash: the folder's files and the base.
inputs_of() {
    (cd "$root/dockerfiles/$1" && find . -type f -not -name README.md -print0 | sort -z | xargs -0 sha256sum &&
        docker image inspect --format '{{.Id}}' "$2") | sha256sum | cut -c1-16
}

vendor() {
    local context=$1 python
    case $2 in
    node22)
        need npm npm
        (cd "$context" && npm ci --omit=dev --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null)
        ;;
    python*)
        python=${2#python}
        python3 -m pip --version >/dev/null 2>&1 || apt_install python3 python3-pip
        local args=(--python-version "$python" --implementation cp --only-binary=:all:) tag
        for tag in manylinux2014 manylinux_2_17 manylinux_2_28 manylinux_2_34; do
            args+=(--platform "${tag}_$(uname -m)")
        done
        (cd "$context" && sh vendor.sh "${args[@]}")
        ;;
    esac
}

build() {
    local name=$1 image=kandev/$1:latest base inputs
    [ -d "$root/dockerfiles/$name" ] || die "no folder dockerfiles/$name"
    base=$(base_of "$name")
    local base_image
    base_image=$("$root/scripts/images/base.sh" "$base")
    inputs=$(inputs_of "$name" "$base_image")
    if [ "$(image_label "$image" kandev.inputs)" = "$inputs" ]; then
        return
    fi
    say "building $image"
    context=$(mktemp -d "${TMPDIR:-/tmp}/kandev-image.XXXXXX")
    trap 'rm -rf "$context"' EXIT
    cp -R "$root/dockerfiles/$name/." "$context"
    vendor "$context" "$base"
    docker_build --build-arg BASE_IMAGE="$base_image" --label kandev.inputs="$inputs" -t "$image" "$context"
    rm -rf "$context"
}

[ $# -gt 0 ] || die "usage: build.sh FOLDER..."
for name; do
    build "$name"
done
