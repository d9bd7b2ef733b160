#!/usr/bin/env bash
# Builds the base image kandev-base/<suite>:1 (suite: bookworm or trixie) without any image registry, or does nothing
# when it is there. Prints the image's name.
# shellcheck disable=SC2016 # what is in single quotes is expanded by root's shell
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../lib.sh"

suite=${1:-bookworm}
case $suite in
bookworm | trixie) ;;
*) die "unknown suite '$suite': bookworm or trixie" ;;
esac
image=kandev-base/$suite:1

if image_exists "$image"; then
    echo "$image"
    exit 0
fi

need debootstrap debootstrap
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || apt_install debian-archive-keyring

say "building $image with debootstrap"
work=$(mktemp -d "${TMPDIR:-/tmp}/kandev-base.XXXXXX")
trap 'as_root rm -rf "$work"' EXIT
rootfs=$work/rootfs
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
say "built $image ($(docker image inspect --format '{{.Size}}' "$image" | awk '{printf "%d MB", $1/1e6}'))"
echo "$image"
