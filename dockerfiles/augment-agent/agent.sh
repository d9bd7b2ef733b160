#!/bin/sh
# Starts Auggie in ACP mode. stdout belongs to the protocol, so complaints go to stderr.
set -eu

# 64: used wrongly (sysexits.h). Auggie itself would ask for a login that nobody here can do.
if [ -z "${AUGMENT_SESSION_AUTH:-}" ]; then
    echo "augment-agent: AUGMENT_SESSION_AUTH is not set: pass the contents of ~/.augment/session.json" >&2
    exit 64
fi

# kandev resumes by session/load; the variable is for people who start the image by hand.
[ "$#" -gt 0 ] || set -- --acp
exec auggie "$@"
