"""Signal-Pull: signals say that something changed, REST says what; contexts, branches, a client that heals itself."""
