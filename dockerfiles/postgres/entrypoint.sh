#!/bin/bash
# Creates the cluster on the first start, as the variables of the official image say, then runs the server.
set -euo pipefail

user=${POSTGRES_USER:-postgres}
database=${POSTGRES_DB:-$user}

if [ "$(id -u)" = 0 ]; then
    install -d -o postgres -g postgres -m 700 "$PGDATA"
    exec setpriv --reuid postgres --regid postgres --init-groups "$0" "$@"
fi

if [ ! -s "$PGDATA/PG_VERSION" ]; then
    : "${POSTGRES_PASSWORD:?must be set for the first start}"
    initdb -D "$PGDATA" --username "$user" --pwfile <(printf '%s\n' "$POSTGRES_PASSWORD") \
        --auth-local trust --auth-host scram-sha-256 --encoding UTF8 --locale C.UTF-8
    echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
    if [ "$database" != postgres ]; then
        # Single-user mode: no port is open before the database is whole.
        echo "CREATE DATABASE \"$database\"" | postgres --single -j -D "$PGDATA" postgres >/dev/null
    fi
fi

exec postgres -D "$PGDATA" -c listen_addresses='*' "$@"
