"""What each route touches, and what a caller needs for it. What is not listed is for administrators of all apps.

One table for all routes, present and future: whoever adds a router gets the strictest rule until its routes are here,
and a test fails until then.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from cognizes.engine.access import Permission

READING = frozenset({"GET", "HEAD", "OPTIONS", "WEBSOCKET"})


class Reach(StrEnum):
    """What a route touches, and so what is compared with the caller."""

    PUBLIC = "public"
    """Nothing of anybody."""
    CALLER = "caller"
    """Only the caller itself, or names that are no secret."""
    THREAD = "thread"
    """The thread in the path."""
    THREADS = "threads"
    """The threads in the query, or those that the connection names while it is open."""
    RUN = "run"
    """The run in the path, and so its thread."""
    APP = "app"
    """The app in the query or the body, and the user there."""
    AGENT = "agent"
    """The app that the agent in the path is, and the caller's user."""
    AGENTS = "agents"
    """The apps of all agents, and the caller's user."""
    EVERYTHING = "everything"
    """More than one app."""


@dataclass(frozen=True)
class Rule:
    """What is compared, which permission is needed, whether it goes into the audit log, and whether it speaks for an
    agent, which end users do not."""

    reach: Reach
    permission: Permission
    is_audited: bool = False
    is_for_agents: bool = False


THREAD_PARAMETERS = ("thread_id", "context_id", "conversation_id")
"""Names that a thread has in paths."""
SESSION_PARAMETER = "context_id"
"""The one of them that may be a session's id as well."""

_CONVERTER = re.compile(r":\w+\}")
_PUBLIC = re.compile(r"/|/health|/version|/docs|/openapi\.json|/monitor.*|/assets.*")
_REACHES: list[tuple[re.Pattern[str], Reach]] = [
    (re.compile(r"/api/access/.*"), Reach.CALLER),
    (re.compile(r"(/v1)?/contexts"), Reach.APP),
    (re.compile(r"/api/sessions"), Reach.APP),
    (re.compile(r"/api/sessions/\{thread_id\}.*"), Reach.THREAD),
    (re.compile(r"(/api)?(/v1)?/(contexts|conversations|timeline)/\{\w+\}.*"), Reach.THREAD),
    (re.compile(r"(/v1)?/(events|ws/signals)"), Reach.THREADS),
    (re.compile(r"/ws/events/\{thread_id.*\}"), Reach.THREAD),
    (re.compile(r"/api/debug/threads/\{thread_id\}.*"), Reach.THREAD),
    (re.compile(r"/api/debug/(threads|apps|pulse)"), Reach.EVERYTHING),
    (re.compile(r"/api/runs"), Reach.APP),
    (re.compile(r"/api/runs/\{run_id(:path)?\}.*"), Reach.RUN),
    (re.compile(r"/agui/\{agent\}.*|/copilotkit/agent/\{agent\}.*"), Reach.AGENT),
    (re.compile(r"/agui|/copilotkit/info"), Reach.CALLER),
    (re.compile(r"/copilotkit/threads.*"), Reach.AGENTS),
    (re.compile(r"(/api)?/memory.*"), Reach.APP),
    (re.compile(r"/api/test-.*"), Reach.EVERYTHING),
]
_DEBUG = re.compile(r"/api/(debug|admin)/.*")
_FOR_AGENTS = re.compile(
    r"(/v1)?/contexts/\{\w+\}/(messages/stream|messages/\{.*\}/(chunks|complete|abort)|tool-approvals)"
    r"|/api/sessions/\{thread_id\}/runs(/\{run_id\}/(start|finish|fail|wait|thinking-steps|tool-calls.*))?"
    r"|/api/runs/\{run_id\}/wait"
)
_READS_BY_POST = re.compile(r".*/(connect|recall|search)|/api/access/tickets")
_ONLY_READS = re.compile(r".*/(recall|search)")


def rule_of(method: str, template: str) -> Rule | None:
    """The rule of a route; None when nobody thought of it yet."""
    template = _CONVERTER.sub("}", template)
    if _PUBLIC.fullmatch(template):
        return Rule(Reach.PUBLIC, Permission.READ)
    reach = next((reach for pattern, reach in _REACHES if pattern.fullmatch(template)), None)
    if reach is None:
        return None
    if method in READING or _READS_BY_POST.fullmatch(template):
        return Rule(reach, Permission.ADMIN if reach is Reach.EVERYTHING else Permission.READ)
    if _DEBUG.fullmatch(template):
        return Rule(reach, Permission.ADMIN, is_audited=True)
    speaks = _FOR_AGENTS.fullmatch(template) is not None
    return Rule(reach, Permission.WRITE, is_audited=method == "DELETE", is_for_agents=speaks)


def only_reads(method: str, path: str) -> bool:
    """Whether a request stores nothing, so that it may be cancelled at any moment."""
    return method in READING or (method == "POST" and _ONLY_READS.fullmatch(path) is not None)


STRICTEST = Rule(Reach.EVERYTHING, Permission.ADMIN, is_audited=True)
