"""AG-UI: translates the engine's events into frames, in the strict profile and in the monitor profile."""
