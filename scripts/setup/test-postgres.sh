#!/usr/bin/env bash
# A throw-away PostgreSQL for tests: test-postgres.sh start|stop|url [durable]. `start` prints its DATABASE_URL; it is one
# cluster per checkout, on a Unix socket only its owner can reach, and fast rather than durable. With `durable` it is
# another one, with PostgreSQL's defaults, for benchmarks.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../lib.sh"

# PostgreSQL refuses to run as root.
run_as=
if [ "$(id -u)" = 0 ]; then
    run_as=nobody
    getent passwd postgres >/dev/null && run_as=postgres
fi
as_server() {
    if [ -n "$run_as" ]; then
        (cd / && setpriv --reuid "$run_as" --regid "$(id -g "$run_as")" --clear-groups -- "$@")
    else
        "$@"
    fi
}

name=test-pg
[ "${2:-}" != durable ] || name=bench-pg

# Under the target directory, unless the server's user cannot get there or the socket's path would pass the 107
# bytes a Unix socket may have.
place() {
    local dir=$target_dir/$name parent
    parent=$target_dir
    mkdir -p "$parent"
    if [ "${#dir}" -le 80 ] && as_server test -x "$parent"; then
        echo "$dir"
    else
        echo "/var/tmp/kandev-$name-$(id -u)-$(printf %s "$root" | sha256sum | cut -c1-12)"
    fi
}
dir=$(place)
data=$dir/data
url="postgresql:///postgres?host=$dir&user=postgres"

running() { [ -e "$data/postmaster.pid" ] && as_server "$bin/pg_ctl" -D "$data" status; }

start() {
    if running >/dev/null 2>&1; then
        return
    fi
    # What a killed run left has nothing worth keeping.
    rm -rf "$dir"
    mkdir -m 700 "$dir"
    [ -z "$run_as" ] || chown "$run_as" "$dir"
    say "starting the test database in $dir"
    local log
    log=$(as_server "$bin/initdb" -D "$data" -U postgres --auth=trust --encoding=UTF8 --locale=C --no-sync 2>&1) ||
        die "initdb: $log"
    as_server tee -a "$data/postgresql.conf" >/dev/null <<CONF
listen_addresses = ''
unix_socket_directories = '$dir'
max_connections = 200
CONF
    [ "$name" = bench-pg ] || as_server tee -a "$data/postgresql.conf" >/dev/null <<CONF
fsync = off
synchronous_commit = off
full_page_writes = off
autovacuum_naptime = 10min
CONF
    as_server "$bin/pg_ctl" -D "$data" -l "$dir/log" -w -t 60 start >/dev/null ||
        { cat "$dir/log" >&2; die "the test database did not start"; }
}

stop() {
    if running >/dev/null 2>&1; then
        as_server "$bin/pg_ctl" -D "$data" -m immediate -w -t 60 stop >/dev/null
    fi
    rm -rf "$dir"
}

bin=$("$root/scripts/setup/postgres.sh")
case ${1:-} in
start)
    start
    echo "$url"
    ;;
stop) stop ;;
url) echo "$url" ;;
*) die "usage: test-postgres.sh start|stop|url [durable]" ;;
esac
