#!/bin/bash
# A kandev-dialect agent (protocol "1.0") with the habits of agents written from Kandev's guide: it answers `initialize`
# before it is asked, reads nothing while it works, and exits on cancel. Sessions are files, so they can be loaded again.
set -euo pipefail

sessions=${SHELL_SESSION_DIR:-/sessions}
work_seconds=${SHELL_WORK_SECONDS:-0.2}

if [ "${1:-}" != "--acp" ]; then
    echo "usage: agent --acp" >&2
    exit 64
fi
mkdir -p "$sessions"

# The request's id as it came, or its text with SHELL_TEXT_IDS=1, as agents of this kind quote it.
answer_id() {
    if [ "${SHELL_TEXT_IDS:-}" = 1 ]; then
        jq -cn --argjson id "$1" '$id | tostring'
    else
        printf %s "$1"
    fi
}

answer() { # ID JSON
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$(answer_id "$1")" "$2"
}

refuse() { # ID CODE MESSAGE
    jq -cn --argjson id "$(answer_id "$1")" --argjson code "$2" --arg message "$3" \
        '{jsonrpc: "2.0", id: $id, error: {$code, $message}}'
}

update() { # TYPE JSON
    printf '{"jsonrpc":"2.0","method":"session/update","params":{"type":"%s","data":%s}}\n' "$1" "$2"
}

content() { update content "$(jq -cn --arg text "$1" '{$text}')"; }
complete() { # SUCCESS SUMMARY
    update complete "$(jq -cn --arg sessionId "$session" --argjson success "$1" --arg summary "$2" \
        '{$sessionId, $success, $summary}')"
}

# The first word of the message decides; anything else is worked on.
work() {
    local message=$1 earlier
    case $message in
    history)
        earlier=$(jq -Rcn '[inputs]' <"$sessions/$session")
        content "history: $earlier"
        ;;
    "fail "*)
        update error "$(jq -cn --arg message "${message#fail }" '{$message, details: "asked for"}')"
        return
        ;;
    "exit "*) exit "${message#exit }" ;;
    "tool "*)
        update toolCall "$(jq -cn --arg file "${message#tool }" \
            '{toolName: "file_edit", status: "running", args: {$file, line: 1}}')"
        printf 'edited by the shell agent\n' >"${message#tool }"
        update toolCall "$(jq -cn --arg file "${message#tool }" \
            '{toolName: "file_edit", status: "completed", args: {$file, line: 1}}')"
        ;;
    *)
        content "Processing: $message"
        sleep "$work_seconds"
        ;;
    esac
    # One prompt a line, so that newlines in it cannot forge another.
    printf '%s\n' "${message//$'\n'/ }" >>"$sessions/$session"
    complete true "did: $message"
}

init='{"protocolVersion":"1.0","serverInfo":{"name":"shell-agent","version":"1.0.0"},"capabilities":{"streaming":true,"sessionResumption":true}}'
answer 1 "$init"

session=
while IFS= read -r line; do
    # Null on a line that is no JSON object: such a line is passed over.
    method=$(jq -r '.method // empty' <<<"$line" 2>/dev/null) || continue
    id=$(jq -c '.id' <<<"$line")
    case $method in
    session/new)
        session=$(uuidgen)
        : >"$sessions/$session"
        answer "$id" "$(jq -cn --arg sessionId "$session" '{$sessionId}')"
        ;;
    session/load)
        wanted=$(jq -r '.params.sessionId // empty' <<<"$line")
        # An id with a slash would be another file's path.
        if [[ $wanted =~ ^[0-9A-Za-z-]+$ && -f $sessions/$wanted ]]; then
            session=$wanted
            answer "$id" "$(jq -cn --arg sessionId "$session" '{$sessionId, loaded: true}')"
        else
            refuse "$id" -32602 "unknown session"
        fi
        ;;
    session/prompt)
        message=$(jq -r '.params.message // empty' <<<"$line")
        if [ -z "$session" ] || [ -z "$message" ]; then
            refuse "$id" -32602 "a prompt needs a session and a message"
            continue
        fi
        answer "$id" '{"accepted":true}'
        work "$message"
        ;;
    session/cancel)
        echo "cancelled: $(jq -r '.params.reason // "no reason"' <<<"$line")" >&2
        exit 0
        ;;
    initialize) ;; # answered already
    *) [ "$id" = null ] || refuse "$id" -32601 "unknown method" ;;
    esac
done
