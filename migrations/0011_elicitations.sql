-- What agents asked people for, and what they were answered; as with permissions.
CREATE TABLE elicitations (
    id               uuid        PRIMARY KEY,
    instance_id      uuid        NOT NULL REFERENCES agent_instances ON DELETE CASCADE,
    -- The session as the agent named it: its own, or a subagent's.
    session_id       text,
    turn_id          uuid,
    -- JSON text, to be echoed as it is.
    request_id       text        NOT NULL,
    mode             text        NOT NULL,
    message          text        NOT NULL,
    tool_call_id     text,
    -- JSON text: the form's schema.
    requested_schema text,
    url              text,
    -- The agent's name for what is done at the URL, under which it tells that it is done.
    agent_key        text,
    status           text        NOT NULL,
    -- JSON text: what the agent was told.
    outcome          text,
    decided_by       text,
    requested_at     timestamptz NOT NULL,
    expires_at       timestamptz,
    answered_at      timestamptz,
    -- What is done at the URL was done.
    completed_at     timestamptz,
    CHECK ((status = 'pending') = (outcome IS NULL))
);
CREATE INDEX elicitations_by_instance ON elicitations (instance_id, id);
CREATE INDEX elicitations_pending ON elicitations (instance_id, id) WHERE status = 'pending';
