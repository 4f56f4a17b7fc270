"""The HTTP edge: REST over the engine, errors as problem details."""
