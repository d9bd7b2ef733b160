-- What an agent last said of each of its subagents. Snapshots come in no order: an older one does not replace a newer one.
CREATE TABLE subagents (
    session_key uuid        NOT NULL REFERENCES sessions ON DELETE CASCADE,
    -- The agent's id of it.
    task_id     text        NOT NULL,
    -- When it changed, by the agent's own clock, in microseconds since 1970; null if the agent does not tell.
    changed_at  bigint,
    -- JSON texts: jsonb refuses \u0000.
    snapshot    text        NOT NULL,
    activity    text,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    PRIMARY KEY (session_key, task_id)
);
