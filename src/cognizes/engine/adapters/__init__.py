"""Adapters of agent frameworks, one package each."""
