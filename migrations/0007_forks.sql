-- A session that was branched off another one, and that no instance has carried yet, is resumed as the other one was launched.
ALTER TABLE sessions ADD COLUMN forked_from uuid REFERENCES sessions ON DELETE SET NULL;
