-- Files that prompts name: what callers uploaded, and copies of files of a workspace as they were when a prompt named them. The
-- latter go with their instance.
CREATE TABLE uploads (
    id          uuid        PRIMARY KEY,
    instance_id uuid        REFERENCES agent_instances ON DELETE CASCADE,
    name        text        NOT NULL,
    mime_type   text        NOT NULL,
    -- By which the agent knows it.
    uri         text        NOT NULL,
    size        bigint      NOT NULL,
    created_at  timestamptz NOT NULL,
    content     bytea       NOT NULL
);
-- Mostly packed already.
ALTER TABLE uploads ALTER COLUMN content SET STORAGE EXTERNAL;
CREATE INDEX uploads_by_age ON uploads (created_at, id) WHERE instance_id IS NULL;
CREATE INDEX uploads_by_instance ON uploads (instance_id) WHERE instance_id IS NOT NULL;
