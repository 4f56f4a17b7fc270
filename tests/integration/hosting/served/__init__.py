"""Hosted agents of a real server, over HTTP."""
