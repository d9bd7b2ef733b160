-- What turns used, where agents report it: tokens with the turn's end, the cost as it grew while the turn was the last one.
ALTER TABLE turns
    ADD COLUMN total_tokens bigint,
    ADD COLUMN input_tokens bigint,
    ADD COLUMN output_tokens bigint,
    ADD COLUMN thought_tokens bigint,
    ADD COLUMN cached_read_tokens bigint,
    ADD COLUMN cached_write_tokens bigint,
    ADD COLUMN cost double precision,
    ADD COLUMN cost_currency text;
CREATE INDEX turns_of_session ON turns (session_key);
