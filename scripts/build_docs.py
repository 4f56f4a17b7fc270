"""Build the documentation site: `uv run python scripts/build_docs.py [--out DIRECTORY]`, by default into `site/`.

It adds two generated pages to `docs/`: the operations of the OpenAPI document, and the public Python names with their
signatures. A broken link, or a page that the navigation lacks, fails the build.
"""

from __future__ import annotations

import argparse
import inspect
import json
import shutil
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
PACKAGES = (
    "cognizes.engine",
    "cognizes.client",
    "cognizes.engine.runs",
    "cognizes.engine.memory",
    "cognizes.engine.streams",
    "cognizes.engine.sync",
    "cognizes.engine.timeline",
    "cognizes.engine.hosting",
    "cognizes.engine.adapters.adk",
    "cognizes.engine.adapters.langgraph",
    "cognizes.engine.adapters.openai_agents",
    "cognizes.engine.adapters.pydantic_ai",
)
NAVIGATION: dict[str, dict[str, str]] = {
    "Start": {
        "Quickstart": "quickstart.md",
        "Tutorial: LangGraph": "tutorial-langgraph.md",
        "Tutorial: memory": "tutorial-memory.md",
        "Concepts": "concepts.md",
        "The Monitor": "monitor.md",
    },
    "Frameworks": {
        "Google ADK": "adk.md",
        "LangGraph": "langgraph.md",
        "Pydantic AI": "pydantic-ai.md",
        "OpenAI Agents SDK": "openai-agents.md",
        "Any agent over AG-UI": "agents.md",
        "MCP": "mcp.md",
    },
    "Guides": {
        "Sessions and state": "sessions.md",
        "Runs": "runs.md",
        "Memory": "memory.md",
        "Live": "live.md",
        "Token streams": "streams.md",
        "Timeline": "timeline.md",
        "Signal-Pull": "signal-pull.md",
        "Clients": "clients.md",
        "The Pulse": "010-the-pulse.md",
    },
    "Operate": {
        "Settings and operation": "operation.md",
        "Security": "security.md",
        "Deployment": "deployment.md",
        "Scaling": "scaling.md",
        "Reliability": "reliability.md",
        "Benchmarks": "benchmarks.md",
    },
    "Reference": {"REST": "reference-rest.md", "Python": "reference-python.md"},
    "Inside": {
        "Architecture": "architecture.md",
        "Versions and compatibility": "compatibility.md",
        "Acceptance": "acceptance.md",
    },
}


ROOT_PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}


def check_navigation() -> None:
    """Exit with the pages that the navigation lacks, or names although they do not exist."""
    named = {page for pages in NAVIGATION.values() for page in pages.values() if not page.startswith("reference-")}
    existing = {path.name for path in (REPOSITORY / "docs").glob("*.md")}
    if named != existing:
        raise SystemExit(f"NAVIGATION and docs/ differ in {', '.join(sorted(named ^ existing))}")


def rest_page(openapi: dict[str, Any]) -> str:
    """Return a page with a table of operations per tag."""
    lines = [
        "# REST reference",
        "",
        "`/docs` of a running server also has bodies, answers and a form for each route.",
        "",
    ]
    tags: dict[str, list[tuple[str, str, str]]] = {}
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            tag = operation.get("tags", ["other"])[0]
            tags.setdefault(tag, []).append((method.upper(), path, operation["summary"]))
    described = {tag["name"]: tag.get("description", "") for tag in openapi.get("tags", [])}
    for tag, rows in sorted(tags.items()):
        lines += [f"## {tag}", "", described.get(tag, ""), "", "| route | |", "| --- | --- |"]
        lines += [f"| `{method} {path}` | {summary} |" for method, path, summary in rows]
        lines.append("")
    return "\n".join(lines)


def python_page() -> str:
    """Return a page with the exported names of each package: signature and the first paragraph of the docstring."""
    lines = ["# Python reference", ""]
    for package in PACKAGES:
        module = import_module(package)
        lines += [f"## {package}", ""]
        for name in module.__all__:
            lines += _entry(name, getattr(module, name))
    return "\n".join(lines)


def _entry(name: str, value: object) -> list[str]:
    if not callable(value):
        return [f"**`{name}`**", ""]
    lines = [f"### {name}", "", "```python", f"{name}{_signature(value)}", "```", ""]
    text = (inspect.getdoc(value) or "").split("\n\n")[0]
    # The text that `dataclass` makes repeats the signature.
    if text and not text.startswith(f"{name}("):
        lines += [text, ""]
    if inspect.isclass(value):
        for method_name, method in vars(value).items():
            if not method_name.startswith("_") and inspect.isfunction(method):
                summary = (inspect.getdoc(method) or "").split("\n\n")[0].replace("\n", " ")
                lines.append(f"- `{method_name}{_signature(method)}`" + (f": {summary}" if summary else ""))
        lines.append("")
    return lines


def _signature(value: Any) -> str:
    try:
        return str(inspect.signature(value)).replace("'", "")
    except ValueError:
        return "()"


def build(out: Path) -> None:
    from cognizes.engine import Settings  # noqa: PLC0415 - after the arguments are read
    from cognizes.engine.api.main import create_app  # noqa: PLC0415

    check_navigation()
    with tempfile.TemporaryDirectory(prefix="cognizes-docs-") as folder:
        root = Path(folder)
        shutil.copytree(REPOSITORY / "docs", root / "docs")
        for source, page in ROOT_PAGES.items():
            (root / "docs" / page).write_text(_as_page((REPOSITORY / source).read_text()))
        openapi = create_app(settings=Settings(), agents=[]).openapi()
        (root / "docs" / "reference-rest.md").write_text(rest_page(openapi))
        (root / "docs" / "reference-python.md").write_text(python_page())
        (root / "mkdocs.yml").write_text(json.dumps(_configuration(), indent=2))
        subprocess.run(["zensical", "build", "--strict", "--clean"], cwd=root, check=True)
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(root / "site", out)


def _as_page(text: str) -> str:
    """Return a page of the repository's root with its links as they are from `docs/`."""
    for source, page in ROOT_PAGES.items():
        text = text.replace(f"]({source})", f"]({page})")
    return text.replace("](docs/", "](")


def _configuration() -> dict[str, Any]:
    navigation = [{group: [{title: page} for title, page in pages.items()]} for group, pages in NAVIGATION.items()]
    inside = next(group["Inside"] for group in navigation if "Inside" in group)
    inside += [{"Changelog": "changelog.md"}, {"Contributing": "contributing.md"}]
    return {
        "site_name": "Cognizes Engine",
        "site_description": "Sessions, state, token streams, durable runs and memory of AI agents, on PostgreSQL.",
        "theme": {"name": "material", "font": False, "features": ["navigation.sections", "content.code.copy"]},
        "nav": [{"Overview": "index.md"}, *navigation],
        "validation": {
            "nav": {"omitted_files": "warn", "not_found": "warn"},
            "links": {"not_found": "warn", "anchors": "warn"},
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "site")
    out = parser.parse_args().out
    build(out)
    sys.stdout.write(f"the site is in {out}\n")


if __name__ == "__main__":
    main()
