-- The session that a launch is to go on with: the agent's id of it, and our key if it is known. An instance has its session only
-- once its agent has taken it up, and nobody else may begin with the same one until then. The key is named without a reference, since
-- the session may go with the task that it began with.
ALTER TABLE agent_instances
    ADD COLUMN resumes_id  text,
    ADD COLUMN resumes_key uuid;
