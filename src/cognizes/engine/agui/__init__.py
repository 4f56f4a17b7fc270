"""AG-UI in its strict profile: what the real clients accept, made of the engine's events."""
