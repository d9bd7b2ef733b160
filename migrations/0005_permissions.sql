-- What agents asked to be allowed, and what they were answered. A row changes in the transaction that stores the event which
-- tells of it. Rows go with their instance; session and turn are named without a reference, since they go with it too.
CREATE TABLE permissions (
    id           uuid        PRIMARY KEY,
    instance_id  uuid        NOT NULL REFERENCES agent_instances ON DELETE CASCADE,
    session_key  uuid,
    -- The session as the agent named it: its own, or a subagent's.
    session_id   text,
    turn_id      uuid,
    -- JSON text, to be echoed as it is.
    request_id   text        NOT NULL,
    tool_kind    text        NOT NULL,
    -- JSON text, cut down where it is large.
    tool_call    text,
    options      text        NOT NULL,
    status       text        NOT NULL,
    -- JSON text: what the agent was told.
    outcome      text,
    decided_by   text,
    -- JSON text of an answer that counts for later requests of the session.
    remembered   text,
    requested_at timestamptz NOT NULL,
    expires_at   timestamptz,
    answered_at  timestamptz,
    CHECK ((status = 'pending') = (outcome IS NULL))
);
CREATE INDEX permissions_by_instance ON permissions (instance_id, id);
CREATE INDEX permissions_pending ON permissions (instance_id, id) WHERE status = 'pending';
CREATE INDEX permissions_remembered ON permissions (session_key, answered_at) WHERE remembered IS NOT NULL;
