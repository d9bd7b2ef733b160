#!/usr/bin/env bash
# Makes sure that a container engine answers: does nothing when one does, else installs docker.io and starts dockerd.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../lib.sh"

pid_file=/var/run/docker.pid
log_file=/var/log/kandev-dockerd.log

answers() { timeout 10 docker version --format '{{.Server.Version}}'; }

if have docker && answers >/dev/null 2>&1; then
    exit 0
fi
[ -z "${DOCKER_HOST:-}" ] || die "no engine answers at DOCKER_HOST=$DOCKER_HOST"
if have docker && docker version 2>&1 | grep -qi 'permission denied'; then
    die "an engine runs, but $(id -un) may not use it: sudo usermod -aG docker $(id -un), then log in again"
fi

as_root true
PATH=$PATH:/usr/sbin:/sbin
have dockerd || apt_install docker.io iptables
have docker || apt_install docker.io

# A package that starts its own service is left to do so.
if [ -d /run/systemd/system ]; then
    say "starting the docker service"
    as_root systemctl start docker
fi
if ! answers >/dev/null 2>&1; then
    # A daemon that died leaves its pid file; a new one refuses to start while that process id is in use by anyone.
    if [ -e "$pid_file" ]; then
        pid=$(as_root cat "$pid_file")
        if [ -r "/proc/$pid/comm" ] && [ "$(cat "/proc/$pid/comm")" = dockerd ]; then
            say "dockerd (pid $pid) is running, waiting for it"
        else
            say "removing the pid file of a dead dockerd"
            as_root rm -f "$pid_file" /var/run/docker/containerd/containerd.pid
            pid=
        fi
    fi
    if [ -z "${pid:-}" ]; then
        say "starting dockerd in the background (log: $log_file)"
        # Root may always use the socket; whoever asked for it by sudo gets it by group.
        # shellcheck disable=SC2016 # expanded by the inner shell
        as_root sh -c 'setsid dockerd --group "$1" </dev/null >>"$2" 2>&1 &' sh "$(id -gn)" "$log_file"
    fi
fi

if ! wait_until 60 answers; then
    as_root tail -n 20 "$log_file" >&2 || true
    die "the engine did not answer within 60 s"
fi
say "engine $(answers) answers"
