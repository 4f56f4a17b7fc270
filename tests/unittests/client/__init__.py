"""The parts of the client that need no server."""
