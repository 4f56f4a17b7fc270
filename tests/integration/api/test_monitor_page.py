"""The Monitor's page and files: served as they must be, with nothing inline and nothing from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from cognizes.engine.monitor import CONTENT_SECURITY_POLICY, STATIC

FILES = sorted(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file())
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
ELSEWHERE = re.compile(r"""(?:https?:)?//[\w-]+\.[\w.-]+""")
NAMESPACE = "http://www.w3.org/2000/svg"


def _texts(suffix: str) -> dict[str, str]:
    return {name: (STATIC / name).read_text() for name in FILES if name.endswith(suffix)}


class _Page(HTMLParser):
    """Collects what the page refers to, and whatever would need an exception from the policy."""

    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.inline: list[str] = []
        self._open = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open = tag
        for name, value in attrs:
            if name in ("src", "href") and value and not value.startswith("#"):
                self.references.append(value)
            if name.startswith("on") or name == "style":
                self.inline.append(f"{tag} {name}")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in ("script", "style") and data.strip():
            self.inline.append(data)


API_PAGE = {"api_reference.js", "api.js", "dom.js"}
"""The modules of /docs."""


@pytest.mark.parametrize(
    ("path", "modules"),
    [
        ("/", {name for name in FILES if name.endswith(".js")} - {"api_reference.js"}),
        ("/docs", API_PAGE),
    ],
)
async def test_a_page_has_a_strict_policy_and_nothing_inline(
    client: httpx.AsyncClient, path: str, modules: set[str]
) -> None:
    answer = await client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    page = _Page()
    page.feed(answer.text)
    assert page.inline == []
    for reference in page.references:
        assert not ELSEWHERE.match(reference)
        assert (await client.get(f"/{reference.removeprefix('./')}")).status_code == 200, reference
    preloaded = {reference.removeprefix("monitor/") for reference in page.references if reference.endswith(".js")}
    assert preloaded == modules, "one round trip for all modules"


async def test_no_page_of_the_framework_is_served(client: httpx.AsyncClient) -> None:
    for path in ("/redoc", "/docs/oauth2-redirect"):
        assert (await client.get(path)).status_code == 404


async def test_every_file_has_its_type(client: httpx.AsyncClient) -> None:
    assert len(FILES) > 10
    for name in FILES:
        answer = await client.get(f"/monitor/{name}")
        assert answer.status_code == 200, name
        assert answer.headers["content-type"] == f"{TYPES[Path(name).suffix]}; charset=utf-8"
        assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = await client.get(f"/monitor/{name}", headers={"if-none-match": answer.headers["etag"]})
        assert again.status_code == 304, name


async def test_nothing_else_is_served(client: httpx.AsyncClient) -> None:
    for path in ("/monitor/../__init__.py", "/monitor/%2e%2e/__init__.py", "/monitor/nothing.js", "/monitor/"):
        assert (await client.get(path)).status_code == 404


def test_nothing_comes_from_elsewhere() -> None:
    for suffix in TYPES:
        for name, text in _texts(suffix).items():
            assert not ELSEWHERE.search(text.replace(NAMESPACE, "")), name


def test_modules_import_only_each_other() -> None:
    for name, text in _texts(".js").items():
        imported = re.findall(r"""(?:from|import)\s*\(?["']([^"']+)["']""", text)
        assert all(path.startswith("./") and path[2:] in FILES for path in imported), name
    assert "import" not in re.sub(r"//.*|/\*.*?\*/", "", (STATIC / "signal_pull.js").read_text())


@pytest.mark.parametrize(
    "way", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser"]
)
def test_markup_is_never_made_of_data(way: str) -> None:
    assert [name for name, text in _texts(".js").items() if way in text] == []
