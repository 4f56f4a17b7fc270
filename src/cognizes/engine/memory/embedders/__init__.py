"""Embedders: what turns texts into vectors. Which one is a setting; each keeps the one Protocol in `embedder`."""
