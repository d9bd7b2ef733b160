-- The order of all instances' events: by the transaction that wrote them. Whoever reads only what older transactions than
-- every running one have written misses none that commits late (docs/adr/all-events.md).
ALTER TABLE journal ADD COLUMN xid xid8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX journal_by_commit ON journal (xid, instance_id, first_seq);

-- How far retention has come: the last place in that order of which something was removed.
CREATE TABLE journal_retention (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    removed_xid xid8    NOT NULL DEFAULT '0',
    removed_instance uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    removed_seq bigint  NOT NULL DEFAULT 0
);
INSERT INTO journal_retention DEFAULT VALUES;
