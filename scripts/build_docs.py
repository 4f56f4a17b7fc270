"""Build the documentation site: `uv run python scripts/build_docs.py [--out DIRECTORY]`, by default into `site/`.

It adds generated pages to `docs/`: the operations and schemas of the OpenAPI document, the public Python names with
their members, the settings, and the commands. A broken link, or a page that the navigation lacks, fails the build.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import pkgutil
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import is_dataclass
from enum import Enum
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel
from rich.text import Text

from cognizes.engine import Settings
from cognizes.engine.api.authorization import UNDECLARED, Access, Reach, declared_access
from cognizes.engine.api.main import create_app
from cognizes.engine.cli import app as command_line
from cognizes.engine.cli.configuration import describe

REPOSITORY = Path(__file__).parents[1]
NAVIGATION: dict[str, dict[str, str]] = {
    "Start": {
        "Quickstart": "quickstart.md",
        "Installation": "installation.md",
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
    "How to": {
        "Test an agent": "guide-testing.md",
        "Deploy": "guide-deploy.md",
        "Choose settings": "guide-settings.md",
        "Keys for a web app": "guide-web-keys.md",
        "Approvals in another system": "guide-approvals.md",
        "nginx and two workers": "guide-nginx.md",
        "Move from ADK's database": "guide-import-adk.md",
        "Memory in a LangGraph graph": "guide-langgraph-memory.md",
        "Back up, restore, upgrade": "guide-backup-upgrade.md",
    },
    "Manual": {
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
    "Reference": {
        "REST": "reference-rest.md",
        "Python": "reference-python.md",
        "Settings": "reference-settings.md",
        "Commands": "reference-commands.md",
    },
    "Inside": {
        "Architecture": "architecture.md",
        "Versions and compatibility": "compatibility.md",
        "Acceptance": "acceptance.md",
    },
}


MAX_WIDTH = 88
# Names in the first column of a table, such as settings, stay on one line. A wide table scrolls.
STYLE = ".md-typeset td:first-child code { white-space: nowrap; }\n"
ROOT_PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}


def check_navigation() -> None:
    """Exit with the pages that the navigation lacks, or names although they do not exist."""
    named = {page for pages in NAVIGATION.values() for page in pages.values() if not page.startswith("reference-")}
    existing = {path.name for path in (REPOSITORY / "docs").glob("*.md")}
    if named != existing:
        raise SystemExit(f"NAVIGATION and docs/ differ in {', '.join(sorted(named ^ existing))}")


def needed_access(app: FastAPI) -> dict[tuple[str, str], Access]:
    """Return what each operation needs of its caller, by method and path."""
    found = {}
    for context in iter_route_contexts(app.routes):
        for method in context.methods or ():
            found[method, str(context.path_format)] = declared_access(context.endpoint) or UNDECLARED
    return found


def rest_page(openapi: dict[str, Any], needed: dict[tuple[str, str], Access]) -> str:
    """Return a page with the operations by tag, each with what it needs, takes and answers, and with all schemas."""
    lines = [
        "# REST reference",
        "",
        "`/docs` of a running server has the same operations, each with a form. [Security](security.md) is about keys.",
        "An answer with an error status is a [Problem](#problem), with the content type `application/problem+json`.",
        "",
    ]
    tags: dict[str, list[str]] = {}
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            access = needed[method.upper(), path]
            tags.setdefault(operation.get("tags", ["other"])[0], []).extend(_operation(method, path, operation, access))
    described = {tag["name"]: tag.get("description", "") for tag in openapi.get("tags", [])}
    for tag, entries in sorted(tags.items()):
        lines += [f"## {tag}", "", described.get(tag, ""), "", *entries]
    lines += ["## Schemas", ""]
    for name, schema in sorted(openapi["components"]["schemas"].items()):
        lines += [f"### {name}", "", schema.get("description", ""), ""]
        required = schema.get("required", [])
        rows = [
            (f"`{field}`" + (", required" if field in required else ""), _type(kind), _text(kind))
            for field, kind in schema.get("properties", {}).items()
        ]
        lines += _table(("field", "type", ""), rows) if rows else [_type(schema), ""]
    return "\n".join(lines)


def _operation(method: str, path: str, operation: dict[str, Any], access: Access) -> list[str]:
    lines = [f"### `{method.upper()} {path}`", "", f"{operation['summary']}.", ""]
    if description := operation.get("description", ""):
        lines += [description, ""]
    rows = []
    for parameter in operation.get("parameters", []):
        required = ", required" if parameter.get("required") else ""
        schema = parameter.get("schema", {})
        rows.append((f"`{parameter['name']}`", f"{parameter['in']}{required}", _type(schema), _text(parameter)))
    if rows:
        lines += _table(("parameter", "in", "type", ""), rows)
    lines += [f"- needs: {_needs(access)}"]
    if body := operation.get("requestBody"):
        lines.append(f"- body{', required' if body.get('required') else ''}: {_content(body)}")
    responses = operation["responses"]
    for status, response in sorted(responses.items()):
        if int(status) < HTTPStatus.BAD_REQUEST:
            lines.append(f"- answer {status}: {_content(response)}")
    errors = [status for status in sorted(responses) if int(status) >= HTTPStatus.BAD_REQUEST]
    return [*lines, f"- errors: {', '.join(errors)}", ""]


_REACHES = {
    Reach.PUBLIC: "",
    Reach.CALLER: ", of the caller itself",
    Reach.THREAD: ", for the thread in the path",
    Reach.THREADS: ", for the threads in the query",
    Reach.RUN: ", for the run in the path",
    Reach.APP: ", for the app and the user in the query or the body",
    Reach.AGENT: ", for the agent in the path",
    Reach.AGENTS: ", for the agents of the server",
    Reach.EVERYTHING: ", for all apps",
}


def _needs(access: Access) -> str:
    if access.reach is Reach.PUBLIC:
        return "no key"
    for_agents = "; not for keys that are bound to a user" if access.is_for_agents else ""
    audited = "; recorded in the audit log" if access.is_audited else ""
    return f"the permission `{access.permission}`{_REACHES[access.reach]}{for_agents}{audited}"


def _content(holder: dict[str, Any]) -> str:
    """Return the types of a body or an answer."""
    kinds = []
    for media, content in holder.get("content", {}).items():
        schema = content.get("schema", {})
        kinds.append(_type(schema) if media == "application/json" and schema else f"`{media}`")
    return " or ".join(kinds) or holder.get("description", "").rstrip(".").lower() or "no content"


def _type(schema: dict[str, Any]) -> str:
    """Return the type of a schema in words, with a link to a named one."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return " or ".join(dict.fromkeys(_type(one) for one in schema[word])) + _bounds(schema)
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(f"`{json.dumps(value)}`" for value in values) + _bounds(schema)
    kind = schema.get("type", "any JSON value")
    if kind == "array":
        return f"array of {_type(schema.get('items', {}))}" + _bounds(schema)
    if isinstance(values := schema.get("additionalProperties"), dict) and values:
        return f"object of {_type(values)}"
    return schema.get("format", kind) + _bounds(schema)


_BOUNDS = {
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "more than",
    "exclusiveMaximum": "less than",
    "minLength": "length at least",
    "maxLength": "length at most",
    "maxItems": "items at most",
    "default": "default",
}


def _bounds(schema: dict[str, Any]) -> str:
    return "".join(
        f", {words} {_number(schema[name])}"
        for name, words in _BOUNDS.items()
        if schema.get(name) not in (None, "", [], {})
    )


def _number(value: Any) -> str:
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def _text(described: dict[str, Any]) -> str:
    return str(described.get("description", "")).replace("\n", " ")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = [head, tuple("---" for _ in head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def public_packages() -> list[str]:
    """Return the packages whose `__all__` is public (docs/compatibility.md), the two most used ones first."""
    first = ["cognizes.engine", "cognizes.client"]
    found = [
        module.name
        for module in pkgutil.walk_packages(import_module("cognizes").__path__, "cognizes.")
        if module.ispkg and hasattr(import_module(module.name), "__all__")
    ]
    return first + sorted(set(found) - set(first))


def python_page() -> str:
    """Return a page with the exported names of each package: signature, first paragraph of the docstring, members."""
    lines = ["# Python reference", ""]
    for package in public_packages():
        module = import_module(package)
        lines += [f"## {package}", "", _paragraph(module), ""]
        for name in module.__all__:
            lines += _entry(name, getattr(module, name))
    return "\n".join(lines)


def _entry(name: str, value: object) -> list[str]:
    if not callable(value):
        return [f"**`{name}`** = `{value!r}`" if isinstance(value, str | int | dict) else f"**`{name}`**", ""]
    lines = [f"### {name}", "", "```python", _wrapped(name, _signature(value)), "```", ""]
    text = _paragraph(value)
    # The text that `dataclass` makes repeats the signature.
    if text and not text.startswith(f"{name}("):
        lines += [text, ""]
    if isinstance(value, type):
        lines += [*_attributes(value), *_methods(value), ""]
    return lines


def _wrapped(name: str, signature: str) -> str:
    """Return a signature with one line per parameter if it is long."""
    line = f"{name}{signature}"
    if len(line) <= MAX_WIDTH:
        return line
    depth, parts = 0, [""]
    inside, _, returned = signature.removeprefix("(").rpartition(")")
    for sign in inside:
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    body = "".join(f"    {part.strip()},\n" for part in parts)
    return f"{name}(\n{body}){returned}"


def _attributes(kind: type) -> list[str]:
    """Return the public attributes with their types; those of a dataclass are in its signature."""
    if issubclass(kind, Enum):
        return [f"- `{member.name}` = `{member.value!r}`" for member in kind]
    if is_dataclass(kind):
        return []
    found: dict[str, str] = {}
    for base in reversed(_own_classes(kind)):
        found |= {name: repr(_annotation(note)) for name, note in vars(base).get("__annotations__", {}).items()}
        if inspect.isfunction(begin := vars(base).get("__init__")):
            found |= {name: note for name, note in _assigned(begin).items() if name not in found}
    return [f"- `{name}: {note}`" if note else f"- `{name}`" for name, note in found.items() if name[0] != "_"]


def _assigned(begin: Callable[..., None]) -> dict[str, str]:
    """Return the attributes that `__init__` sets, with their types as far as its text says them."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(begin)))
    notes = {name: repr(_annotation(one.annotation)) for name, one in inspect.signature(begin).parameters.items()}
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            target, note = node.target, ast.unparse(node.annotation)
        elif isinstance(node, ast.Assign):
            target, note = node.targets[0], ""
            if isinstance(node.value, ast.Name):
                note = notes.get(node.value.id, "")
            elif isinstance(node.value, ast.Call) and ast.unparse(node.value.func)[:1].isupper():
                note = ast.unparse(node.value.func)
        else:
            continue
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
            found[target.attr] = note
    return found


def _methods(kind: type) -> list[str]:
    """Return the public methods, class methods and properties, also inherited ones."""
    lines = []
    members: dict[str, object] = {}
    for base in reversed(_own_classes(kind)):
        members |= vars(base)
    for name, member in members.items():
        if name.startswith("_") or (issubclass(kind, Enum) and name in kind.__members__):
            continue
        if isinstance(member, property):
            note = inspect.signature(member.fget).return_annotation if member.fget else ""
            lines.append(_line(f"{name}: {_annotation(note)!r}", member))
        elif isinstance(member, classmethod | staticmethod):
            lines.append(_line(f"{type(member).__name__} {name}{_signature(getattr(kind, name))}", member.__func__))
        elif inspect.isfunction(member):
            prefix = "async " if inspect.iscoroutinefunction(member) else ""
            lines.append(_line(f"{prefix}{name}{_signature(member)}", member))
    return lines


def _own_classes(kind: type) -> list[type]:
    return [base for base in kind.__mro__ if base.__module__.startswith("cognizes.")]


def _line(signature: str, value: object) -> str:
    summary = _paragraph(value).replace("\n", " ")
    return f"- `{signature}`" + (f": {summary}" if summary else "")


def _paragraph(value: object) -> str:
    return (inspect.getdoc(value) or "").split("\n\n")[0]


def settings_page() -> str:
    """Return a page with all settings: variable, default, bounds and meaning."""
    lines = [
        "# Settings",
        "",
        "Each setting is an environment variable or a line of `.env`. In Python it is an argument of `Engine.open()`,",
        "in lower case without the prefix, for example `pool_size=20`. `cognizes config` prints the values in use, and",
        "`cognizes config --template` a file with all defaults. [Choosing settings](guide-settings.md) explains which",
        "ones to set first.",
        "",
    ]
    schema = Settings.model_json_schema(by_alias=False)["properties"]
    rows = []
    for setting in describe(Settings(_env_file=None)):  # type: ignore[call-arg]
        default = "" if setting.name == "data_dir" or setting.default in (None, "") else f"`{setting.default}`"
        bounds = _bounds({name: value for name, value in schema[setting.name].items() if name != "default" and value})
        rows.append((f"`{setting.variable}`", default, setting.description + bounds.replace(",", " Allowed:", 1)))
    return "\n".join([*lines, *_table(("variable", "default", "meaning"), rows)])


def commands_page() -> str:
    """Return a page with all commands of `cognizes`, their arguments and options."""
    lines = [
        "# Commands",
        "",
        "`cognizes --help` and `cognizes COMMAND --help` print the same. A command exits with 0 for success, 1 for a",
        "failure and 2 for wrong usage.",
        "",
    ]
    root = typer.main.get_command(command_line)
    return "\n".join([*lines, *_commands(root, root.context_class(root, info_name="cognizes"))])


def _commands(group: Any, context: Any) -> list[str]:
    lines = []
    for name, command in group.commands.items():
        inner = command.context_class(command, info_name=name, parent=context)
        if hasattr(command, "commands"):
            lines += _commands(command, inner)
            continue
        usage = " ".join([inner.command_path, *command.collect_usage_pieces(inner)]).replace("{", "").replace("}", "")
        text = Text.from_markup(inspect.cleandoc(command.help or "")).plain
        lines += [f"## {inner.command_path}", "", "```text", usage, "```", "", text, ""]
        options = [option for option in command.params if option.param_type_name == "option" and not option.hidden]
        rows = [(", ".join(f"`{one}`" for one in one_option.opts), one_option.help or "") for one_option in options]
        lines += _table(("option", "meaning"), rows) if rows else []
    return lines


class _Text:
    """A text that a signature prints without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _annotation(note: object) -> _Text:
    return _Text(note if isinstance(note, str) else inspect.formatannotation(note))


def _default(value: object) -> object:
    """Return a default whose form is its source, not its address."""
    if isinstance(value, Enum):
        return _Text(str(value) if not isinstance(value, str) else repr(value.value))
    if inspect.isroutine(value):
        return _Text(value.__name__)
    return _Text("…") if repr(value) == "<factory>" else value


def _signature(value: Any) -> str:
    if inspect.isclass(value) and issubclass(value, BaseModel):
        return "(**values)"
    try:
        found = inspect.signature(value)
    except ValueError:
        return "()"
    parameters = [
        one.replace(
            annotation=one.annotation if one.annotation is one.empty else _annotation(one.annotation),
            default=_default(one.default),
        )
        for name, one in found.parameters.items()
        if name != "self"
    ]
    note = found.return_annotation
    returned = note if note is found.empty else _annotation(note)
    return str(found.replace(parameters=parameters, return_annotation=returned))


def build(out: Path) -> None:
    check_navigation()
    with tempfile.TemporaryDirectory(prefix="cognizes-docs-") as folder:
        root = Path(folder)
        shutil.copytree(REPOSITORY / "docs", root / "docs")
        for source, page in ROOT_PAGES.items():
            (root / "docs" / page).write_text(_as_page((REPOSITORY / source).read_text()))
        index = root / "docs" / "index.md"
        index.write_text("---\nhide:\n  - navigation\n---\n" + index.read_text())
        (root / "docs" / "site.css").write_text(STYLE)
        app = create_app(settings=Settings(), agents=[])
        (root / "docs" / "reference-rest.md").write_text(rest_page(app.openapi(), needed_access(app)))
        (root / "docs" / "reference-python.md").write_text(python_page())
        (root / "docs" / "reference-settings.md").write_text(settings_page())
        (root / "docs" / "reference-commands.md").write_text(commands_page())
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
        "theme": {
            "name": "material",
            "font": False,
            "features": [
                "navigation.tabs",
                "navigation.sections",
                "navigation.footer",
                "navigation.top",
                "content.code.copy",
                "toc.follow",
            ],
            "palette": [
                _palette("auto", "default", "brightness-auto", "Use the light colours"),
                _palette("light", "default", "brightness-7", "Use the dark colours"),
                _palette("dark", "slate", "brightness-4", "Use the colours of the system"),
            ],
        },
        "extra_css": ["site.css"],
        "nav": [{"Overview": "index.md"}, *navigation],
        "validation": {
            "nav": {"omitted_files": "warn", "not_found": "warn"},
            "links": {"not_found": "warn", "anchors": "warn"},
        },
    }


def _palette(name: str, scheme: str, icon: str, label: str) -> dict[str, Any]:
    media = "(prefers-color-scheme)" if name == "auto" else f"(prefers-color-scheme: {name})"
    return {"media": media, "scheme": scheme, "toggle": {"icon": f"material/{icon}", "name": label}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "site")
    out = parser.parse_args().out
    build(out)
    sys.stdout.write(f"the site is in {out}\n")


if __name__ == "__main__":
    main()
