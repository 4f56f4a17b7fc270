-- The last message of the batch that is processed next: a repetition and a consolidation at the same time form the same batch.
ALTER TABLE {schema}.memory_consolidations ADD COLUMN IF NOT EXISTS planned_sequence bigint NOT NULL DEFAULT 0;
