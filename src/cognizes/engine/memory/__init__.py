"""Durable memory: working, long-term and episodic, snapshots that resume a run, and recall over all of it."""
