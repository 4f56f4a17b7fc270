"""Loads agents of any framework by name: `my_package.agent:root_agent`, or the built-in `demo`.

Frameworks are extras, and importing them takes seconds. What an object is follows from the modules of its classes, so
that no framework is imported that the agent does not use.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cognizes.engine.adapters.agui import AguiAgent, source_of
from cognizes.engine.engine import Engine
from cognizes.engine.errors import SetupError
from cognizes.engine.hosting import AgentCapabilities, HostedAgent, ServedAgent
from cognizes.engine.hosting.agent import PredictingAgent

logger = logging.getLogger(__name__)

DEMO = "demo"
HOW_TO_GET_AGENTS = (
    "google-adk is not installed; get it with `uv sync --extra adk` or `pip install 'cognizes-engine[adk]'`"
)
_PATH = "write it as package.module:agent"
_ACCEPTED = (
    "an ADK agent, Workflow or App, a compiled LangGraph graph, a Pydantic AI Agent, an OpenAI Agents SDK Agent, an "
    "object with `run(RunAgentInput)` that yields AG-UI events, a HostedAgent, or an async generator function of "
    "RunAgentInput"
)


@dataclass(frozen=True)
class _Framework:
    """A framework whose agents are hosted: the classes that mark them, and the function that hosts one.

    `exports` is a name that its package exports and a package of the user with the same name does not.
    """

    extra: str
    classes: frozenset[tuple[str, str]]
    module: str
    function: str
    exports: str = ""

    def has_class(self, module: str, name: str) -> bool:
        return any(
            name == marked and _is_in(package, module) and self.is_package(package) for package, marked in self.classes
        )

    def is_package(self, name: str) -> bool:
        """Return whether the imported package of this name is the framework's."""
        return not self.exports or hasattr(sys.modules.get(name), self.exports)


def _is_in(package: str, module: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


_FRAMEWORKS = (
    _Framework(
        "adk",
        frozenset({("google.adk", "BaseNode"), ("google.adk", "App")}),
        "cognizes.engine.adapters.adk.agent",
        "host_app",
    ),
    _Framework(
        "langgraph",
        frozenset({("langgraph", "CompiledStateGraph"), ("langgraph", "Pregel")}),
        "cognizes.engine.adapters.langgraph.hosting",
        "host_graph",
    ),
    _Framework(
        "pydantic-ai",
        frozenset({("pydantic_ai", "AbstractAgent"), ("pydantic_ai", "Agent")}),
        "cognizes.engine.adapters.pydantic_ai.hosting",
        "host_agent",
    ),
    _Framework(
        "openai-agents",
        frozenset({("agents", "AgentBase"), ("agents", "Agent")}),
        "cognizes.engine.adapters.openai_agents.hosting",
        "host_agent",
        exports="RunContextWrapper",
    ),
)


def has_adk() -> bool:
    """Return whether google-adk can be imported, without importing it."""
    try:
        return importlib.util.find_spec("google.adk") is not None
    except ModuleNotFoundError:
        return False


def require_adk() -> None:
    """Raise an `ImportError` with the install command unless google-adk can be imported."""
    if not has_adk():
        raise ImportError(HOW_TO_GET_AGENTS, name="google.adk")


def load_agents(paths: Sequence[str], engine: Engine) -> list[HostedAgent]:
    """Return the agents of these paths, in order; without a path the demo, or no agent without google-adk.

    It imports frameworks: call it in a thread. `SetupError` when a path names no agent, or two agents have one name.
    """
    if not paths:
        paths = [DEMO] if has_adk() else []
    agents: dict[str, HostedAgent] = {}
    for path in paths:
        agent = _load(path, engine)
        if agent.name in agents:
            raise SetupError(f"two agents are called {agent.name!r}; rename one of them")
        agents[agent.name] = agent
    return list(agents.values())


def _load(path: str, engine: Engine) -> HostedAgent:
    if path == DEMO:
        if not has_adk():
            raise SetupError(f"cannot serve {DEMO}: {HOW_TO_GET_AGENTS}")
        from cognizes.engine.adapters.adk.demo import make_demo_app  # noqa: PLC0415

        return host(make_demo_app(engine.settings), engine, path=path)
    return host(find_object(path), engine, path=path)


def find_object(path: str) -> Any:
    """Return the object of a path `package.module:object`; `SetupError` when there is none."""
    module_name, _, attribute = path.partition(":")
    # An installed command does not search the current directory for modules.
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    refused = f"the agent {path!r} cannot be loaded"
    if not module_name:
        raise SetupError(f"{refused}: it names no module; {_PATH}")
    try:
        found = importlib.import_module(module_name)
    except ImportError as error:
        raise SetupError(f"{refused}: {error}; {_advice(error, module_name)}") from error
    except (Exception, SystemExit) as error:
        # The code of the module, such as a key that is missing in the environment.
        logger.exception("the module %s cannot be imported", module_name)
        raise SetupError(f"{refused}: {module_name} raised {type(error).__name__}: {error}") from error
    try:
        for name in (attribute or "root_agent").split("."):
            found = getattr(found, name)
    except AttributeError as error:
        raise SetupError(f"{refused}: {error}; {_PATH}") from error
    return found


def _advice(error: ImportError, module_name: str) -> str:
    missing = error.name or ""
    if _is_in(missing, module_name):
        return _PATH
    packages = {package: framework.extra for framework in _FRAMEWORKS for package, _ in framework.classes}
    if extra := next((extra for package, extra in packages.items() if _is_in(package, missing)), None):
        return f"install it with `pip install 'cognizes-engine[{extra}]'`"
    return f"{module_name} imports it: install its package" if isinstance(error, ModuleNotFoundError) else _PATH


def host(found: Any, engine: Engine, *, path: str) -> HostedAgent:
    """Return an object as a hosted agent; `SetupError` when it is none, or when its extra is not installed."""
    if isinstance(found, ServedAgent):
        return PredictingAgent(host(found.agent, engine, path=path), found.predicted_state)
    if _is_hosted_agent(found):
        hosted: HostedAgent = found
        return hosted
    framework = _framework_of(found)
    if framework is not None:
        return _hosting_function(framework, path)(found, name=_name_of(found, path), engine=engine)
    if (source := source_of(found)) is None:
        raise SetupError(f"{path!r} is {_described(found)}, which is no agent; name {_ACCEPTED}")
    description = str(getattr(found, "description", None) or _first_line(found))
    declared = getattr(found, "capabilities", None)
    return AguiAgent(
        source,
        name=_name_of(found, path),
        description=description,
        engine=engine,
        capabilities=declared if isinstance(declared, AgentCapabilities) else None,
    )


def _described(found: Any) -> str:
    if isinstance(found, type):
        return f"the class {found.__name__}"
    if inspect.isroutine(found):
        return "a function that is no async generator function"
    if any(base.__name__ == "StateGraph" for base in type(found).__mro__):
        return "a StateGraph that is not compiled (`.compile()`)"
    return f"an object of the type {type(found).__name__}"


def _is_hosted_agent(found: Any) -> bool:
    """Return whether an object implements the protocol `HostedAgent` itself."""
    methods = (getattr(found, name, None) for name in ("read_turn", "read_continuation", "run", "close"))
    return (
        not isinstance(found, type)
        and all(map(callable, methods))
        and isinstance(getattr(found, "capabilities", None), AgentCapabilities)
    )


def _framework_of(found: Any) -> _Framework | None:
    bases = type(found).__mro__
    return next(
        (one for one in _FRAMEWORKS if any(one.has_class(base.__module__, base.__name__) for base in bases)), None
    )


def _hosting_function(framework: _Framework, path: str) -> Callable[..., HostedAgent]:
    try:
        function: Callable[..., HostedAgent] = getattr(importlib.import_module(framework.module), framework.function)
    except ImportError as error:
        raise SetupError(
            f"cannot serve {path!r}: {error}; install the extra with `pip install 'cognizes-engine[{framework.extra}]'`"
        ) from error
    return function


def _name_of(found: Any, path: str) -> str:
    """Return the name of an agent: its own, if it can be part of a URL, else the last part of its path."""
    own = getattr(found, "name", None) or getattr(found, "__name__", None)
    if isinstance(own, str) and re.fullmatch(r"[\w.-]+", own) and own != "LangGraph":
        return own
    return re.split(r"[.:]", path)[-1]


def _first_line(found: Any) -> str:
    document = found.__doc__ or ""
    return document.strip().partition("\n")[0]


def warm_up() -> None:
    """Run an ADK agent once in memory: the first run imports hundreds of modules. Call it in a thread."""
    from cognizes.engine.adapters.adk.demo import run_demo_once  # noqa: PLC0415

    try:
        run_demo_once()
    except Exception as error:
        # Only the first run is slower to start.
        logger.warning("the warm-up of agents failed", exc_info=error)
