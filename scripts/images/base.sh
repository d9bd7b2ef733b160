#!/usr/bin/env bash
# Builds a base image without any image registry, or does nothing when it is there, and prints its name:
#   base.sh bookworm|trixie          kandev-base/<suite>:1, by debootstrap
#   base.sh node22                   bookworm with Node.js, in the place of node:22-bookworm-slim
#   base.sh python3.11|python3.13    bookworm or trixie with its Python, in the place of python:<version>-slim
# shellcheck disable=SC2016 # what is in single quotes is expanded by root's shell
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../lib.sh"

node_version=22.23.5

name=${1:-bookworm}
image=kandev-base/$name:1
case $name in
bookworm | trixie | node22 | python3.11 | python3.13) ;;
*) die "unknown base '$name'" ;;
esac
if image_exists "$image"; then
    echo "$image"
    exit 0
fi

work=$(mktemp -d -t kandev-base.XXXXXX)
trap 'as_root rm -rf "$work"' EXIT

# The Node.js binary comes from the npm registry, which has it for each architecture.
node_image() {
    local arch base
    base=$("$0" bookworm)
    case $(uname -m) in
    x86_64) arch=x64 ;;
    aarch64) arch=arm64 ;;
    *) die "no Node.js package for $(uname -m)" ;;
    esac
    need npm npm
    say "building $image"
    (cd "$work" && npm pack --silent "node-linux-$arch@$node_version" >/dev/null)
    tar -xzf "$work"/node-linux-*.tgz -C "$work" package/bin/node
    chmod 755 "$work/package/bin/node"
    printf 'FROM %s\nCOPY package/bin/node /usr/local/bin/node\n' "$base" >"$work/Dockerfile"
    docker_build -t "$image" "$work"
    docker run --rm "$image" node -e 'crypto.randomUUID()'
}

python_image() {
    local base
    base=$("$0" "$1")
    say "building $image"
    printf 'FROM %s\nRUN apt-get update -qq && apt-get install -qqy python3 >/dev/null && rm -rf /var/lib/apt/lists/*\n' \
        "$base" | docker_build -t "$image" -
    docker run --rm "$image" python3 -c "import sys; assert '%d.%d' % sys.version_info[:2] == '${name#python}'"
}

debootstrap_image() {
    local suite=$1 rootfs=$work/rootfs
    need debootstrap debootstrap
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || apt_install debian-archive-keyring
    say "building $image with debootstrap"
    # No mirror is named: debootstrap has Debian's own as its default, also on Ubuntu.
    as_root env PATH="$PATH:/usr/sbin:/sbin" debootstrap --variant=minbase \
        --keyring=/usr/share/keyrings/debian-archive-keyring.gpg "$suite" "$rootfs" >"$work/log" 2>&1 ||
        { tail -n 30 "$work/log" >&2; die "debootstrap $suite failed"; }

    # The security suite lives beside the main one on every mirror.
    as_root sh -c 'sed -n "s|^deb \([^ ]*\)/\{0,1\} '"$suite"' .*|deb \1-security '"$suite"'-security main|p" \
        "$1/etc/apt/sources.list" >>"$1/etc/apt/sources.list.new"
        cat "$1/etc/apt/sources.list.new" >>"$1/etc/apt/sources.list"; rm "$1/etc/apt/sources.list.new"' sh "$rootfs"
    # What a container never reads; later installs skip it too.
    as_root tee "$rootfs/etc/dpkg/dpkg.cfg.d/container" >/dev/null <<'CFG'
path-exclude=/usr/share/doc/*
path-exclude=/usr/share/man/*
path-exclude=/usr/share/locale/*
path-exclude=/usr/share/info/*
CFG
    as_root tee "$rootfs/etc/apt/apt.conf.d/container" >/dev/null <<'CFG'
APT::Install-Recommends "false";
APT::Update::Post-Invoke { "rm -f /var/cache/apt/*.bin"; };
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin"; };
CFG
    as_root sh -c 'cd "$1" && rm -rf var/lib/apt/lists/* var/cache/apt/* var/log/* usr/share/doc/* usr/share/man/* \
        usr/share/locale/* usr/share/info/*' sh "$rootfs"
    # mknod'ed devices are the engine's business, and would not import without privileges.
    as_root sh -c 'rm -rf "$1"/dev/* "$1"/proc/* "$1"/sys/*' sh "$rootfs"

    as_root tar -C "$rootfs" --numeric-owner -c . |
        docker import --change 'CMD ["/bin/bash"]' --message "debootstrap $suite" - "$image" >/dev/null
}

case $name in
node22) node_image ;;
python3.11) python_image bookworm ;;
python3.13) python_image trixie ;;
*) debootstrap_image "$name" ;;
esac
say "built $image ($(docker image inspect --format '{{.Size}}' "$image" | awk '{printf "%d MB", $1/1e6}'))"
echo "$image"
