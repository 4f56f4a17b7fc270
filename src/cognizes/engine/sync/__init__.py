"""Signal-Pull (seed 003): contexts, branches, signals that announce changes, and a client that pulls them."""
