#!/usr/bin/env bash
# Makes sure that PostgreSQL's server binaries are installed, and prints their directory. Starts nothing.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../lib.sh"

# The order of `kandev serve`: PATH, pg_config, then the newest of Debian's directories.
bin_dir() {
    local dir found
    if found=$(command -v initdb); then
        dirname "$(readlink -f "$found")"
        return
    fi
    if have pg_config && [ -x "$(pg_config --bindir)/initdb" ]; then
        pg_config --bindir
        return
    fi
    dir=$(find /usr/lib/postgresql -maxdepth 3 -name initdb 2>/dev/null | sort -V | tail -n 1)
    [ -n "$dir" ] && dirname "$dir"
}

if ! bin_dir; then
    # Debian's package would create a cluster and start a service that nobody here asked for.
    drop_in=/etc/postgresql-common/createcluster.d/kandev.conf
    as_root mkdir -p "$(dirname "$drop_in")"
    echo 'create_main_cluster = false' | as_root tee "$drop_in" >/dev/null
    trap 'as_root rm -f "$drop_in"' EXIT
    apt_install postgresql
    bin_dir || die "installed postgresql, but found no initdb"
fi
