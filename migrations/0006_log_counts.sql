-- The counts of log lines lie in the index itself, so that a total reads no rows; one of a slow agent's are many, and far apart.
CREATE INDEX journal_log_counts ON journal (instance_id, first_seq) INCLUDE (last_seq, log_stdout, log_stderr, log_system)
    WHERE log_stdout + log_stderr + log_system > 0;
DROP INDEX journal_logs;
