"""The `cognizes` command. A user's mistake ends in one sentence, never in a traceback."""

from cognizes.engine.cli.command import main

__all__ = ["main"]
