#!/usr/bin/env bash
# Builds kandev/<folder>:latest for the folders of dockerfiles/ it is given, on a machine without an image registry, and
# skips those whose inputs have not changed. Node.js and Python packages are fetched here, before the build, with the
# host's certificates and proxies, which a build step would not have.
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

# In a container, so that pip sees the very Python it installs for; with the host's certificates and pip settings.
vendor_python() {
    local context=$1 pip_image=kandev-base/$2-pip:1 ca=/etc/ssl/certs/ca-certificates.crt name
    [ -e "$ca" ] || apt_install ca-certificates
    image_exists "$pip_image" ||
        printf 'FROM %s\nRUN apt-get update -qq && apt-get install -qqy python3-pip && rm -rf /var/lib/apt/lists/*\n' \
            "$("$root/scripts/images/base.sh" "$2")" | docker_build -t "$pip_image" -
    local args=(-v "$context:/context" -v "$ca:/etc/kandev-ca.crt:ro" -e PIP_CERT=/etc/kandev-ca.crt)
    [ ! -e /etc/pip.conf ] || args+=(-v /etc/pip.conf:/etc/pip.conf:ro)
    for name in HTTP_PROXY HTTPS_PROXY NO_PROXY PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_DEFAULT_TIMEOUT; do
        args+=(-e "$name")
    done
    # Files of the caller's, so that the caller can remove them.
    docker run --rm --user "$(id -u):$(id -g)" -e HOME=/tmp "${args[@]}" "$pip_image" sh /context/vendor.sh
}

vendor() {
    local context=$1
    case $2 in
    node22)
        need npm npm
        (cd "$context" && npm ci --omit=dev --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null)
        ;;
    python*) vendor_python "$context" "$2" ;;
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
    context=$(mktemp -d -t kandev-image.XXXXXX)
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
