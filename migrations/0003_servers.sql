-- Servers of a deployment. Each run of a server is a row of its own, whose number goes with everything that it writes: once
-- the row has its end, nothing more is taken from that run.
CREATE TABLE servers (
    fence       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The deployment.
    owner       text        NOT NULL,
    -- For people.
    name        text        NOT NULL,
    -- The data directory, in which a lock of the kernel's tells whether the run still lives; none without one.
    home        uuid,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL,
    ended_at    timestamptz
);
CREATE INDEX servers_alive ON servers (owner) WHERE ended_at IS NULL;

-- Which run holds an instance that has not ended. None, or one that has ended: any may take it up.
ALTER TABLE agent_instances ADD COLUMN held_by bigint REFERENCES servers;
CREATE INDEX instances_held ON agent_instances (held_by) WHERE held_by IS NOT NULL;

-- Commands that reached a server which does not hold the instance, until their caller has the answer.
CREATE TABLE commands (
    id          uuid        PRIMARY KEY,
    instance_id uuid        NOT NULL REFERENCES agent_instances ON DELETE CASCADE,
    -- JSON text: jsonb refuses \u0000.
    request     text        NOT NULL,
    asked_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The run that has handed it to the instance's task.
    taken_by    bigint,
    -- JSON text. Written in one transaction with what the command changed.
    answer      text
);
CREATE INDEX commands_open ON commands (instance_id) WHERE answer IS NULL;
