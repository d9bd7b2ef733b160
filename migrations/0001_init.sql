-- Tasks: the unit of work that a caller tracks.
CREATE TABLE tasks (
    id          text        PRIMARY KEY,
    title       text,
    description text,
    state       text        NOT NULL,
    metadata    jsonb       NOT NULL DEFAULT '{}',
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL
);
CREATE INDEX tasks_by_age ON tasks (created_at, id);

-- Sessions: an agent's conversations, outliving instances. The agent's own id need not be unique.
CREATE TABLE sessions (
    key            uuid        PRIMARY KEY,
    session_id     text        NOT NULL,
    agent_type     text        NOT NULL,
    workspace_path text        NOT NULL,
    task_id        text        NOT NULL REFERENCES tasks ON DELETE CASCADE,
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL
);
CREATE INDEX sessions_by_agents_id ON sessions (session_id, agent_type);
CREATE INDEX sessions_by_age ON sessions (created_at, key);
CREATE INDEX sessions_by_task ON sessions (task_id);

-- The latest of each thing that an agent says about a session (modes, plan, usage, …), as JSON text: jsonb refuses \u0000.
CREATE TABLE session_facets (
    session_key uuid        NOT NULL REFERENCES sessions ON DELETE CASCADE,
    facet       text        NOT NULL,
    value       text        NOT NULL,
    updated_at  timestamptz NOT NULL,
    PRIMARY KEY (session_key, facet)
);

CREATE TABLE agent_instances (
    id                uuid        PRIMARY KEY,
    task_id           text        NOT NULL REFERENCES tasks ON DELETE CASCADE,
    agent_type        text        NOT NULL,
    workspace_path    text        NOT NULL,
    priority          integer     NOT NULL,
    metadata          jsonb       NOT NULL,
    -- The launch, less its environment: what a resume needs to repeat it.
    launch            text        NOT NULL,
    env_names         text[]      NOT NULL,
    -- The launch's environment, encrypted with the deployment's key.
    env_sealed        bytea       NOT NULL,
    permission_policy text        NOT NULL,
    lifecycle         text        NOT NULL,
    -- The deployment, as on the container's label.
    owner             text        NOT NULL,
    status            text        NOT NULL,
    turn_state        text        NOT NULL,
    progress          smallint    NOT NULL DEFAULT 0 CHECK (progress BETWEEN 0 AND 100),
    session_key       uuid        REFERENCES sessions ON DELETE SET NULL,
    resumed_from      uuid        REFERENCES agent_instances ON DELETE SET NULL,
    container_id      text,
    exit_code         bigint,
    oom_killed        boolean     NOT NULL DEFAULT false,
    error_code        text,
    error_message     text,
    -- JSON text; what an agent answered, or which authentication it offers.
    error_details     text,
    stderr_tail       text,
    ended_reason      text,
    created_at        timestamptz NOT NULL,
    running_at        timestamptz,
    finished_at       timestamptz,
    updated_at        timestamptz NOT NULL
);
-- A task has at most one instance that has not ended: the database decides a race of two launches.
CREATE UNIQUE INDEX one_active_instance_per_task ON agent_instances (task_id) WHERE status IN ('starting', 'running');
CREATE INDEX instances_by_age ON agent_instances (created_at, id);
CREATE INDEX instances_by_task ON agent_instances (task_id);
CREATE INDEX instances_active ON agent_instances (owner) WHERE status IN ('starting', 'running');

CREATE TABLE turns (
    id            uuid        PRIMARY KEY,
    instance_id   uuid        NOT NULL REFERENCES agent_instances ON DELETE CASCADE,
    session_key   uuid        REFERENCES sessions ON DELETE SET NULL,
    ordinal       integer     NOT NULL,
    status        text        NOT NULL,
    prompt        text        NOT NULL,
    stop_reason   text,
    usage         text,
    meta          text,
    error_code    text,
    error_message text,
    error_details text,
    cancel_reason text,
    updates       bigint,
    -- Positions in the journal between which the turn's events lie.
    first_seq     bigint,
    last_seq      bigint,
    queued_at     timestamptz NOT NULL,
    started_at    timestamptz,
    finished_at   timestamptz,
    UNIQUE (instance_id, ordinal)
);
CREATE INDEX turns_unfinished ON turns (instance_id) WHERE status IN ('queued', 'running');

-- The journal: one row holds the events first_seq..last_seq of one instance, with the agent's frames byte for byte, lz4-packed.
CREATE TABLE journal (
    instance_id uuid        NOT NULL REFERENCES agent_instances ON DELETE CASCADE,
    first_seq   bigint      NOT NULL,
    last_seq    bigint      NOT NULL,
    -- The set of event kinds within, a bit each.
    kinds       integer     NOT NULL,
    -- How many lines of log, by stream.
    log_stdout  integer     NOT NULL,
    log_stderr  integer     NOT NULL,
    log_system  integer     NOT NULL,
    -- How many lines of each pipe have been stored up to here: where a re-read of the container's log goes on.
    stdout_lines bigint     NOT NULL,
    stderr_lines bigint     NOT NULL,
    written_at  timestamptz NOT NULL,
    body        bytea       NOT NULL,
    PRIMARY KEY (instance_id, first_seq),
    CHECK (last_seq >= first_seq)
);
ALTER TABLE journal ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX journal_logs ON journal (instance_id, first_seq) WHERE log_stdout + log_stderr + log_system > 0;
