"""Other frameworks on this engine, one folder each."""
