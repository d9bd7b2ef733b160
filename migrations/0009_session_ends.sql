-- A session that its agent was made to delete: nothing can go on with it any more, and what happened in it stays.
ALTER TABLE sessions ADD COLUMN deleted_at timestamptz;
