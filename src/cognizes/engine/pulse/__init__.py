"""The Pulse: sessions, scoped state and events, exact under concurrency."""
