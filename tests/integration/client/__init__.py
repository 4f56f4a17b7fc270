"""The client of a remote server, against real servers."""
