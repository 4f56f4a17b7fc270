"""Three corpora of conversations with questions, for `memory_recall.py`.

- LoCoMo: chats of two persons with short turns (`locomo10.json`, CC BY-NC 4.0, read from a directory).
- QMSum: committee meetings, turns of 44 words in the median (`committee.jsonl`, MIT, read from a directory).
- Documentation: an assistant explains functions and classes in long messages. The texts are the docstrings of the
  standard library and of numpy that are installed beside this script; nothing of them is stored in the project. The
  first paragraph of a docstring is not part of the message; it is the question. `make_headings` asks it as it is.
  `make_paraphrases` replaces words by synonyms of a small table and drops each other word that the message contains,
  so that the message can be found only by its meaning.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SHORTEST, _LONGEST = 120, 700
"""Words of a message of the documentation corpus."""
_MESSAGES = 45
"""Long messages of a conversation of the documentation corpus."""
_QUESTION, _TELLING = 5, 3
"""The fewest words of a heading, and of a paraphrase without function words."""
_FUNCTION_WORDS = set(
    "a an and are as at be but by do for from has have how if in into is it its no not of on or that the their this to "  # noqa: SIM905
    "was were what when where which who will with you your".split()
)
_NUMPY = (
    "numpy",
    "numpy.random",
    "numpy.ma",
    "numpy.linalg",
    "numpy.polynomial.polynomial",
    "numpy.fft",
    "numpy.testing",
)
_SKIPPED = {"antigravity", "idlelib", "lib2to3", "test", "this", "tkinter", "turtle", "turtledemo"}
_REQUESTS = (
    "Go on.",
    "And the next one?",
    "What else is there?",
    "Please explain one more.",
    "Thanks. Another one, please.",
)
_SYNONYMS = {
    "add": "attach", "all": "every", "array": "table", "arrays": "tables", "along": "across",
    "average": "typical value", "axis": "direction", "boolean": "true or false", "bytes": "binary data",
    "calculate": "find out", "call": "run",
    "change": "modify", "class": "type", "close": "shut", "compute": "work out", "computes": "works out",
    "connection": "link", "convert": "turn", "copy": "duplicate", "create": "make", "data": "values",
    "delete": "remove", "dictionary": "mapping", "directory": "folder", "dimension": "direction",
    "draw": "take", "element": "item",
    "element-wise": "one by one", "elements": "items", "equal": "same", "error": "problem", "evaluate": "work out",
    "exception": "problem", "file": "document", "fill": "set", "find": "look for", "function": "routine",
    "generate": "produce", "get": "fetch", "given": "supplied", "input": "what goes in", "integer": "whole number",
    "integers": "whole numbers", "iterator": "sequence", "join": "combine", "length": "size", "list": "sequence",
    "matrix": "grid", "maximum": "largest", "mean": "typical value", "message": "text", "method": "routine",
    "minimum": "smallest", "multiply": "scale", "name": "label", "new": "fresh", "number": "amount", "object": "thing",
    "objects": "things", "open": "access", "order": "arrangement", "output": "what comes out", "path": "location",
    "print": "show", "process": "program", "raise": "throw", "random": "chance", "read": "load", "remove": "drop",
    "repeat": "duplicate", "replace": "substitute", "return": "give back", "returns": "gives back", "reverse": "flip",
    "samples": "values", "search": "look", "select": "pick", "send": "transmit", "set": "collection", "shape": "layout",
    "socket": "network endpoint", "sort": "arrange", "split": "cut", "start": "begin", "stop": "end", "store": "keep",
    "string": "text", "strings": "texts", "sum": "total", "test": "check", "thread": "task", "tuple": "sequence",
    "use": "employ", "value": "quantity", "values": "quantities", "variable": "name", "wait": "pause", "write": "save",
}  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """A message of a conversation."""

    id: str
    session: int
    place: int
    author: str
    text: str


@dataclass(frozen=True)
class Question:
    """A question and the turns that answer it."""

    text: str
    evidence: frozenset[str]


@dataclass(frozen=True)
class Conversation:
    """The turns of a conversation and the questions about them."""

    name: str
    turns: list[Turn]
    questions: list[Question]


def load_locomo(directory: Path) -> list[Conversation]:
    """Return the conversations of LoCoMo with the questions of categories 1 to 4."""
    return [_locomo(entry) for entry in json.loads((directory / "locomo10.json").read_text())]


def _locomo(entry: dict[str, Any]) -> Conversation:
    said = entry["conversation"]
    turns = []
    for session in itertools.count(1):
        if f"session_{session}_date_time" not in said and f"session_{session}" not in said:
            break
        for place, turn in enumerate(said.get(f"session_{session}", [])):
            caption = f" [{turn['blip_caption']}]" if turn.get("blip_caption") else ""
            turns.append(Turn(turn["dia_id"], session, place, turn["speaker"], turn["text"] + caption))
    known = {turn.id for turn in turns}
    questions = []
    for asked in entry["qa"]:
        evidence = frozenset(re.findall(r"D\d+:\d+", " ".join(asked.get("evidence", [])))) & known
        if asked["category"] in (1, 2, 3, 4) and evidence:
            questions.append(Question(asked["question"], evidence))
    return Conversation(entry["sample_id"], turns, questions)


def load_qmsum(directory: Path) -> list[Conversation]:
    """Return the committee meetings of QMSum with their specific questions."""
    lines = (directory / "committee.jsonl").read_text().splitlines()
    return [_qmsum(f"meeting-{number}", json.loads(line)) for number, line in enumerate(lines)]


def _qmsum(name: str, entry: dict[str, Any]) -> Conversation:
    turns = [
        Turn(str(place), 1, place, turn["speaker"], turn["content"])
        for place, turn in enumerate(entry["meeting_transcripts"])
    ]
    questions = []
    for asked in entry["specific_query_list"]:
        spans = [(int(first), int(last)) for first, last in asked["relevant_text_span"]]
        evidence = {str(place) for first, last in spans for place in range(first, last + 1) if place < len(turns)}
        if evidence:
            questions.append(Question(asked["query"], frozenset(evidence)))
    return Conversation(name, turns, questions)


@dataclass(frozen=True)
class _Page:
    question: str
    text: str


def make_headings() -> Iterator[Conversation]:
    """Yield conversations about documentation with questions in the words of its headings."""
    return _explain_all(lambda page: page.question)


def make_paraphrases() -> Iterator[Conversation]:
    """Yield conversations about documentation with questions that share no word with the answer."""
    return _explain_all(paraphrase)


def _explain_all(ask: Callable[[_Page], str | None]) -> Iterator[Conversation]:
    for name, modules in {"numpy": _NUMPY, "library": sorted(sys.stdlib_module_names)}.items():
        asked = ((question, page) for page in _pages(modules) if (question := ask(page)) is not None)
        for number in itertools.count():
            if len(part := list(itertools.islice(asked, _MESSAGES))) < _MESSAGES:
                break
            yield _explain(f"{name}-{number}", part)


def _explain(name: str, asked: list[tuple[str, _Page]]) -> Conversation:
    turns, questions = [], []
    for place, (question, page) in enumerate(asked):
        request = _REQUESTS[place % len(_REQUESTS)]
        turns.append(Turn(f"q{place}", 1, 2 * place, "user", request))
        turns.append(Turn(f"a{place}", 1, 2 * place + 1, "assistant", page.text))
        questions.append(Question(question, frozenset({f"a{place}"})))
    return Conversation(name, turns, questions)


def paraphrase(page: _Page) -> str | None:
    """Return the question in other words than those of the message; None if too few are left."""
    message = set(re.findall("[a-z]+", page.text.lower()))
    words, telling = [], 0
    for word in page.question.split():
        bare = re.sub("[^a-z]", "", word.lower())
        if bare in _SYNONYMS or bare not in message:
            words.append(_SYNONYMS.get(bare, word))
            telling += 1
        elif bare in _FUNCTION_WORDS:
            words.append(word)
    return " ".join(words) if telling >= _TELLING else None


def _pages(modules: tuple[str, ...] | list[str]) -> Iterator[_Page]:
    seen: set[str] = set()
    for name in modules:
        if name.startswith("_") or name in _SKIPPED:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = importlib.import_module(name)
        except Exception:  # noqa: BLE001 - modules of other platforms
            continue
        for text in _docstrings(module):
            page = _page(text)
            if page is not None and page.question not in seen:
                seen.add(page.question)
                yield page


def _docstrings(module: Any) -> Iterator[str]:
    for name, member in sorted(vars(module).items()):
        if name.startswith("_"):
            continue
        owner = str(getattr(member, "__module__", module.__name__))
        if owner.partition(".")[0] != module.__name__.partition(".")[0]:
            continue
        methods = (
            [method for key, method in sorted(vars(member).items()) if key[0] != "_"] if inspect.isclass(member) else []
        )
        for documented in (member, *methods):
            text = getattr(documented, "__doc__", None)
            if isinstance(text, str) and not inspect.ismodule(documented):
                yield inspect.cleandoc(text)


def _page(text: str) -> _Page | None:
    paragraphs = [part for part in re.split(r"\n\s*\n", text) if part.strip()]
    if paragraphs and re.match(r"^\w[\w.]*\(.*\)( -> .*)?$", paragraphs[0].strip(), re.DOTALL):
        paragraphs = paragraphs[1:]
    if len(paragraphs) < 2:
        return None
    question, body = " ".join(paragraphs[0].split()), "\n\n".join(paragraphs[1:])
    words = body.split()
    if not _QUESTION <= len(question.split()) <= 40 or len(words) < _SHORTEST:
        return None
    if len(words) > _LONGEST:
        body = body[: sum(len(part) for part in re.findall(r"\S+\s*", body)[:_LONGEST])]
    return _Page(question, body)
