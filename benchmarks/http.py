"""Starts the benchmark of `http_edge.py`: `uv run python benchmarks/http.py`, see there.

The scripts of this folder find this file when they import the standard library's package `http`. So it moves the folder
to the end of the path and, when it is imported, replaces itself by that package.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

_HERE = str(Path(__file__).parent)
sys.path[:] = [*(place for place in sys.path if place != _HERE), _HERE]

if __name__ == "__main__":
    importlib.import_module("http_edge").main()
else:
    del sys.modules[__name__]
    importlib.import_module(__name__)
