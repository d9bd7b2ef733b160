-- What another process needs to take an active instance up: its open requests, how far it had come, frames that may not
-- have reached the agent. Written with the events that it goes with, and encrypted with the deployment's key, since frames
-- and catalogue entries may hold secrets.
ALTER TABLE agent_instances ADD COLUMN saved bytea;
