"""The ordered timeline of a conversation, made of stored events."""
