"""Write `constraints.txt`: the versions of all packages, with every extra, that the tests ran with.

    uv run python scripts/constraints.py            # write it from uv.lock
    uv run python scripts/constraints.py --check    # exit with 1 if it differs, and show how

An installation uses it with `pip install -c constraints.txt 'cognizes-engine[all]'`. It names versions and the systems
that they are for, no servers and no hashes.
"""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).parents[1] / "constraints.txt"
_HEADER = """# The versions that cognizes-engine was tested with: pip install -c constraints.txt 'cognizes-engine[all]'
# Written by scripts/constraints.py.
"""


def constraints() -> str:
    """Return the text of the file, of the present uv.lock."""
    command = ["uv", "export", "--quiet", "--frozen", "--format", "requirements-txt", "--all-extras"]
    command += ["--no-default-groups", "--no-hashes", "--no-emit-project", "--no-annotate", "--no-header"]
    found = subprocess.run(command, cwd=FILE.parent, check=True, capture_output=True, text=True)
    return _HEADER + found.stdout


def main() -> int:
    text = constraints()
    if "--check" not in sys.argv[1:]:
        FILE.write_text(text, encoding="utf-8")
        return 0
    before = FILE.read_text(encoding="utf-8")
    sys.stdout.writelines(
        difflib.unified_diff(before.splitlines(True), text.splitlines(True), "constraints.txt", "uv.lock", n=0)
    )
    return int(before != text)


if __name__ == "__main__":
    sys.exit(main())
