"""The version of the engine, as installed."""

from importlib.metadata import version as _installed_version

__version__ = _installed_version("cognizes-engine")
