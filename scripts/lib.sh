# shellcheck shell=bash
# Shared by the scripts here: source it after `set -euo pipefail`.

# The repository's root, whatever the caller's directory.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export root
target_dir=${CARGO_TARGET_DIR:-$root/target}
export target_dir

say() { printf '==> %s\n' "$*" >&2; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# Runs a command as root: directly, or by sudo.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif have sudo; then
        sudo "$@"
    else
        die "this needs root or sudo: $*"
    fi
}

# Installs Debian packages, refreshing the package lists once per run.
apt_install() {
    have apt-get || die "please install by hand (no apt-get here): $*"
    say "installing $* with apt-get"
    local log
    log=$(mktemp)
    if [ -z "${KANDEV_APT_FRESH:-}" ]; then
        as_root apt-get -o Acquire::Retries=3 update >"$log" 2>&1 || { cat "$log" >&2; rm -f "$log"; die "apt-get update failed"; }
        export KANDEV_APT_FRESH=1
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 install -y --no-install-recommends "$@" \
        >"$log" 2>&1 || { cat "$log" >&2; rm -f "$log"; die "apt-get could not install: $*"; }
    rm -f "$log"
}

# need COMMAND PACKAGE...: installs the packages when the command is missing.
need() {
    local command=$1
    shift
    have "$command" || PATH=$PATH:/usr/sbin:/sbin have "$command" || apt_install "$@"
}

image_exists() { docker image inspect "$1" >/dev/null 2>&1; }
image_label() { docker image inspect --format "{{index .Config.Labels \"$2\"}}" "$1" 2>/dev/null || true; }

# Builds quietly; the builder's output is shown when it fails.
docker_build() {
    local log
    log=$(mktemp)
    docker build "$@" >"$log" 2>&1 || { cat "$log" >&2; rm -f "$log"; die "docker build failed"; }
    rm -f "$log"
}

# wait_until SECONDS COMMAND...: polls until the command succeeds; false when the time is over.
wait_until() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.1
    done
}
