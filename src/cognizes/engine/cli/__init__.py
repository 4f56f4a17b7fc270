from cognizes.engine.cli.command import main

__all__ = ["main"]
