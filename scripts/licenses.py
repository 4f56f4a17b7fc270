"""Check the licences of all packages that an installation of cognizes-engine with every extra consists of.

    uv run python scripts/licenses.py [--list]

The licences are those in the metadata of the installed packages. The command exits with 1 and names each package whose
licence is not in the list below; with `--list` it prints all packages and licences. Packages of the tests are not
checked: they are not distributed.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = "cognizes-engine[all]"
ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CNRI-Python",
    "HPND",
    "ISC",
    "MIT",
    "MIT-0",
    "MIT-CMU",
    "MPL-2.0",
    "PostgreSQL",
    "PSF-2.0",
    "Python-2.0",
    "Unlicense",
    "Zlib",
}
"""Identifiers of SPDX. MPL-2.0 concerns changed files of the package itself, which we do not change."""
NAMES = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache": "Apache-2.0",
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "new bsd license": "BSD-3-Clause",
    "python software foundation license": "PSF-2.0",
    "psf": "PSF-2.0",
    "psfl": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
}
"""Other spellings, in lower case, of classifiers and of the field `License`."""
KNOWN: dict[str, str] = {}
"""Licences of packages whose metadata names none, read in their source: name to SPDX expression."""


def packages(root: str = ROOT) -> dict[str, Distribution]:
    """Return the installed packages that a requirement needs, with its extras, by name."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(root)]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                package = found[name] = found.get(name) or distribution(name)
            except PackageNotFoundError:
                continue  # for another system or version of Python
            for text in package.requires or ():
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    waiting.append(needed)
    return dict(sorted(found.items()))


def license_of(package: Distribution) -> str:
    """Return the licence of a package: an SPDX expression, a classifier, or the text of a short field."""
    metadata = package.metadata
    name = canonicalize_name(metadata["Name"])
    if name in KNOWN:
        return KNOWN[name]
    if expression := metadata.get("License-Expression"):
        return str(expression)
    classifiers = metadata.get_all("Classifier") or []
    marked = [text.rpartition(" :: ")[2] for text in classifiers if text.startswith("License :: ")]
    marked = [text for text in marked if text != "OSI Approved"]
    if marked:
        return " OR ".join(NAMES.get(text.lower(), text) for text in marked)
    text = str(metadata.get("License") or "").strip()
    first = text.splitlines()[0].strip() if text else ""
    return NAMES.get(first.lower(), first) or "unknown"


def is_allowed(expression: str) -> bool:
    """Return whether an expression of `AND`, `OR` and parentheses can be met with the licences of the list."""
    tokens = [token for token in re.split(r"\s*(\(|\)|\bAND\b|\bOR\b|\bWITH\b)\s*", expression) if token]

    def either() -> bool:
        result = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            result = both() or result
        return result

    def both() -> bool:
        result = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            result = one() and result
        return result

    def one() -> bool:
        if not tokens:
            return False
        token = tokens.pop(0)
        if token == "(":
            result = either()
            if tokens:
                tokens.pop(0)
            return result
        if tokens and tokens[0] == "WITH":
            del tokens[:2]
        return NAMES.get(token.lower(), token) in ALLOWED

    return either() and not tokens


def main() -> int:
    found = {name: (package.version, license_of(package)) for name, package in packages().items()}
    refused = {name: terms for name, (_, terms) in found.items() if not is_allowed(terms)}
    if "--list" in sys.argv[1:]:
        for name, (version, terms) in found.items():
            print(f"{name} {version}: {terms}")
    for name, terms in refused.items():
        print(f"{name} has the licence {terms!r}, which scripts/licenses.py does not allow", file=sys.stderr)
    print(f"{len(found)} packages, {len(refused)} with a licence that is not allowed")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
