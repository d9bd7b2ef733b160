-- What a caller gives the agent with a prompt beside its content, as JSON text; null if nothing.
ALTER TABLE turns ADD COLUMN prompt_meta text;
