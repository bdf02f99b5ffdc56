"""The shape of the code, read from its syntax trees: who imports whom, what is pure, how big things get.

The rules are those of `docs/adr/0001-layers-and-pure-core.md`. A rule may have exceptions; each stands here
with its reason, and an exception that is no longer needed fails the test as well.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from picopyn.dialects.base import Capability

PACKAGE = Path(__file__).parent.parent / "picopyn"

#: Room → storey. Imports go to the same room or downwards; the rooms of storey 0 are one vocabulary.
STOREYS = {
    "bulk_report": 0,
    "errors": 0,
    "settings": 0,
    "role_settings": 0,
    "staleness": 0,
    "placement_settings": 0,
    "gone_settings": 0,
    "topology_keys": 0,
    "word_values": 0,
    "dsn": 0,
    "passfile": 0,
    "service_file": 0,
    "durations": 0,
    "tls": 0,
    "query_metadata": 0,
    "query_plan": 0,
    "observe": 0,
    "stats": 0,
    "topology": 1,
    "routing": 2,
    "dialects": 3,
    "engine": 4,
    "asynchronous": 5,
    "sync": 5,
    "contrib": 6,
    "cli": 6,
}
#: Modules that are vocabulary although their room stands higher: values without any decision.
VOCABULARY = {"picopyn.routing.route"}
#: Same storey, other room: who may all the same.
NEIGHBOURS = {("sync", "asynchronous")}
PURE_STOREYS = range(4)

OUTSIDE_WORLD = {
    "asyncio", "asyncpg", "concurrent", "logging", "multiprocessing", "os", "pathlib", "queue", "secrets",
    "select", "selectors", "signal", "socket", "socketserver", "subprocess", "tempfile", "threading", "time",
}  # fmt: skip
NOT_IN_ENGINE = {
    "asyncio",
    "asyncpg",
    "concurrent",
    "os",
    "select",
    "selectors",
    "socket",
    "threading",
    "time",
}
TESTING_MAY_IMPORT = {"errors"}

MAX_CODE_LINES = 400
MAX_BRANCHES = 10
MAX_ATTRIBUTES = 12
VAGUE_NAMES = {"manager", "helper", "helpers", "util", "utils", "data", "common", "misc"}

#: What breaks a rule today (without the number) → why it may.
EXCEPTIONS = {
    "picopyn.engine.request:Request has too many attributes": "one per fact of a call on its way",
    "picopyn.observe imports logging": "an observer's exception must be told somewhere",
    "picopyn.settings:PoolSettings has too many attributes": "one per setting",
    "picopyn.stats:PoolStats has too many attributes": "one per thing that is counted",
    "picopyn.routing.explanation:RouteExplanation has too many attributes": "one per line of the explanation",
    "picopyn.testing.picodata.planner.statement:Statement has too many attributes": "one per planned fact",
    "picopyn.testing.picodata.shape:Shape has too many attributes": "one per option of a cluster",
    "picopyn.topology.events:EventInstance has too many attributes": "one per fact of an instance",
    "picopyn.topology.snapshot:Node has too many attributes": "one per fact of an instance",
}


@dataclass(frozen=True)
class Import:
    """One imported module, with the names taken from it."""

    module: str
    names: tuple[str, ...]
    typing_only: bool
    at_top: bool
    line: int


class Module:
    """One file of the package as a syntax tree."""

    def __init__(self, name: str, source: str, *, package: bool = False) -> None:
        self.name = name
        self.source = source
        self.package = package
        self.tree = ast.parse(source)

    @property
    def room(self) -> str:
        """First part of the name below the package; `""` for the package itself."""
        return room_of(self.name)

    @property
    def storey(self) -> int | None:
        """How high the module stands; None for `testing` and the package itself."""
        return storey_of(self.name)

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Every import, wherever it stands."""
        return tuple(self._imports(self.tree, typing_only=False, at_top=True))

    def _imports(self, node: ast.AST, *, typing_only: bool, at_top: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            only = typing_only or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
            top = at_top and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            if isinstance(child, ast.Import):
                yield from (Import(alias.name, (), only, top, child.lineno) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                names = tuple(alias.name for alias in child.names)
                yield Import(self._absolute(child), names, only, top, child.lineno)
            else:
                yield from self._imports(child, typing_only=only, at_top=top)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        base = parts[: len(parts) - node.level + self.package]
        return ".".join([*base, node.module] if node.module else base)

    def functions(self) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        """Every function with its dotted name inside the module."""
        yield from _named(self.tree, "", (ast.FunctionDef, ast.AsyncFunctionDef))

    def classes(self) -> Iterator[tuple[str, ast.ClassDef]]:
        """Every class with its dotted name inside the module."""
        yield from _named(self.tree, "", (ast.ClassDef,))


def _named(node: ast.AST, prefix: str, kinds: tuple[type, ...]) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}{child.name}"
            if isinstance(child, kinds):
                yield name, child
            name += "."
        yield from _named(child, name, kinds)


def room_of(name: str) -> str:
    """First part of a module's name below the package; `""` for the package itself."""
    return name.split(".")[1] if "." in name else ""


def storey_of(name: str) -> int | None:
    """Storey of a module of the package."""
    if name in VOCABULARY:
        return 0
    parts = name.split(".")
    return STOREYS.get(parts[1]) if len(parts) > 1 and parts[0] == "picopyn" else None


def package_modules() -> dict[str, Module]:
    """Every module of the package by name."""
    modules = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("picopyn", *path.relative_to(PACKAGE).with_suffix("").parts)
        package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if package else parts)
        modules[name] = Module(name, path.read_text("utf-8"), package=package)
    return modules


MODULES = package_modules()


# --- the rules: each yields what breaks it ---------------------------------------------------------------


def targets(module: Module, imported: Import) -> Iterator[str]:
    """Modules of the package that an import reaches."""
    if imported.module.split(".")[0] != "picopyn":
        return
    below = [f"{imported.module}.{name}" for name in imported.names]
    found = [name for name in below if name in MODULES or (storey_of(name) is not None and name.count(".") == 1)]
    yield from found
    if not imported.names or len(found) < len(below):
        yield imported.module


def upward_imports(module: Module) -> Iterator[str]:
    """Imports that do not go down, typing-only ones included."""
    if module.storey is None:
        return
    for imported in module.imports:
        for target in targets(module, imported):
            room = room_of(target)
            if room in ("", module.room) or room == "testing":
                continue
            height = storey_of(target)
            down = height is not None and height < module.storey
            beside = height == module.storey and (height == 0 or (module.room, room) in NEIGHBOURS)
            if not (down or beside):
                yield f"{module.name} imports {target}"


def imports_of_testing(module: Module) -> Iterator[str]:
    """Only `cli` may import `testing`, and `testing` stands alone."""
    for imported in module.imports:
        for target in targets(module, imported):
            room = room_of(target)
            if room == "testing" and module.room not in ("testing", "cli"):
                yield f"{module.name} imports {target}"
            if module.room == "testing" and room not in ("", "testing", *TESTING_MAY_IMPORT):
                yield f"{module.name} imports {target}"


def outside_world_in_pure_rooms(module: Module) -> Iterator[str]:
    """A pure room has no loop, socket, thread, clock, file, log or random numbers of its own."""
    if module.storey not in PURE_STOREYS:
        return
    for imported in module.imports:
        top = imported.module.split(".")[0]
        if imported.typing_only:
            continue
        if top in OUTSIDE_WORLD or (top == "random" and imported.names not in ((), ("Random",))):
            yield f"{module.name} imports {top}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and _reaches_out(ast.unparse(node.func)):
            yield f"{module.name} calls {ast.unparse(node.func)}()"


def _reaches_out(function: str) -> bool:
    """Whether a call asks something outside; `random.Random` is good as a type only."""
    return (
        function in ("Random", "open", "print", "input")
        or function.startswith("random.")
        or (function.endswith((".utcnow", "datetime.now", ".today")))
    )


def engine_laws(module: Module) -> Iterator[str]:
    """The engine knows no loop, never waits under a lock, and has nothing that threads could not step."""
    if module.room != "engine":
        return
    for imported in module.imports:
        if imported.module.split(".")[0] in NOT_IN_ENGINE and not imported.typing_only:
            yield f"{module.name} imports {imported.module}"
    for node in ast.walk(module.tree):
        if _holds_lock(node) and any(isinstance(below, _WAITS) for below in ast.walk(node)):
            yield f"{module.name}:{node.lineno} waits while it holds a lock"
        if (isinstance(node, ast.Attribute) and node.attr in ("CancelledError", "gather")) or (
            isinstance(node, ast.Name) and node.id in ("CancelledError", "gather")
        ):
            yield f"{module.name}:{node.lineno} names {ast.unparse(node)}"
    for name, function in module.functions():
        if isinstance(function, ast.AsyncFunctionDef) and any(map(_is_yield, _own_nodes(function))):
            yield f"{module.name}:{name} is an async generator"
        if function.name in ("__aenter__", "__aexit__", "__aiter__", "__anext__"):
            yield f"{module.name}:{name} is part of an async protocol"


_WAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith)


def _holds_lock(node: ast.AST) -> bool:
    return isinstance(node, ast.With) and any("lock" in ast.unparse(item).lower() for item in node.items)


def _is_yield(node: ast.AST) -> bool:
    return isinstance(node, ast.Yield | ast.YieldFrom)


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function without those of functions and classes inside it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield child
            yield from _own_nodes(child)


def code_lines(module: Module) -> int:
    """Lines with code: without blank lines, comments and docstrings."""
    lines = set()
    skipped = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def branches(function: ast.AST) -> int:
    """Places where a function can go another way."""
    ways = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.match_case)
    found = [node for node in _own_nodes(function) if isinstance(node, ways)]
    return len(found) + sum(len(node.ifs) for node in _own_nodes(function) if isinstance(node, ast.comprehension))


def attributes(cls: ast.ClassDef) -> set[str]:
    """Names of the attributes of an instance: fields, and whatever is assigned to `self`."""
    names = {
        node.target.id
        for node in cls.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and "ClassVar" not in ast.unparse(node.annotation)
    }
    for node in _own_nodes_of_methods(cls):
        stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if stored and isinstance(node.value, ast.Name) and node.value.id == "self":
            names.add(node.attr)
    return names


def _own_nodes_of_methods(cls: ast.ClassDef) -> Iterator[ast.AST]:
    for child in cls.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from ast.walk(child)


def sizes(module: Module) -> Iterator[str]:
    """Modules, functions and classes that are too big."""
    lines = code_lines(module)
    if lines > MAX_CODE_LINES:
        yield f"{module.name} has too many code lines ({lines})"
    for name, function in module.functions():
        if branches(function) > MAX_BRANCHES:
            yield f"{module.name}:{name} has too many branches ({branches(function)})"
    for name, cls in module.classes():
        if len(attributes(cls)) > MAX_ATTRIBUTES:
            yield f"{module.name}:{name} has too many attributes ({len(attributes(cls))})"


def missing_docstrings(module: Module) -> Iterator[str]:
    """Public things that nobody explained; an empty `__init__.py` explains nothing and needs nothing."""
    if module.tree.body and not ast.get_docstring(module.tree):
        yield f"{module.name} has no docstring"
    for name, node in [*module.classes(), *module.functions()]:
        public = not any(part.startswith("_") for part in name.split("."))
        if public and not ast.get_docstring(node) and not _is_repetition(node) and not _is_nested(module, name):
            yield f"{module.name}:{name} has no docstring"


def _is_repetition(node: ast.AST) -> bool:
    """Overloads and setters repeat what is explained beside them."""
    marks = [ast.unparse(mark) for mark in getattr(node, "decorator_list", ())]
    return any(mark in ("overload", "override") or mark.endswith((".setter", ".deleter")) for mark in marks)


def _is_nested(module: Module, name: str) -> bool:
    functions = {function for function, _ in module.functions()}
    parts = name.split(".")
    return any(".".join(parts[:count]) in functions for count in range(1, len(parts)))


_SECTIONS = ("Args:", "Attributes:", "Raises:")
#: How an entry of a section begins: a name, or several, and a colon.
_ENTRY = re.compile(r"    \S+(, \S+)*:( |$)")


def damaged_docstrings(module: Module) -> Iterator[str]:
    """A section stands once, and each of its entries on a line of its own."""
    for name, node in [*module.classes(), *module.functions()]:
        lines = (ast.get_docstring(node) or "").splitlines()
        if any(lines.count(title) > 1 for title in (*_SECTIONS, "Returns:")):
            yield f"{module.name}:{name} repeats a section"
        title = ""
        for line in lines:
            if line and not line.startswith(" "):
                title = line
            elif title in _SECTIONS and line[4:5].strip() and not _ENTRY.match(line):
                yield f"{module.name}:{name} has a damaged line: {line.strip()}"


def vague_names(module: Module) -> Iterator[str]:
    """Rooms are nouns of the field."""
    if set(module.name.split(".")[-1].split("_")) & VAGUE_NAMES:
        yield f"{module.name} says nothing by its name"


RULES: dict[str, Callable[[Module], Iterator[str]]] = {
    "imports go downwards": upward_imports,
    "testing stands alone": imports_of_testing,
    "pure rooms are pure": outside_world_in_pure_rooms,
    "the engine keeps its laws": engine_laws,
    "things stay small": sizes,
    "public things are explained": missing_docstrings,
    "docstrings are whole": damaged_docstrings,
    "names say something": vague_names,
}


@pytest.mark.parametrize("rule", RULES)
def test_every_module_keeps_the_rule(rule: str) -> None:
    """Whatever breaks a rule is listed with its reason."""
    broken = [problem for module in MODULES.values() for problem in RULES[rule](module)]
    assert [problem for problem in broken if problem.partition(" (")[0] not in EXCEPTIONS] == []


def test_no_exception_outlives_its_reason() -> None:
    """An exception that nothing needs any more is taken out."""
    broken = {problem for rule in RULES.values() for module in MODULES.values() for problem in rule(module)}
    assert set(EXCEPTIONS) - {problem.partition(" (")[0] for problem in broken} == set()


def test_every_capability_is_asked_for() -> None:
    """What a dialect answers, somebody above wants to know."""
    askers = [module.source for module in MODULES.values() if module.room in ("engine", "asynchronous")]
    unread = {word.name for word in Capability if not any(f"Capability.{word.name}" in source for source in askers)}
    assert unread == set()


def test_no_room_is_forgotten() -> None:
    """Every room of the package has a storey."""
    assert {module.room for module in MODULES.values()} - {"", "testing"} <= set(STOREYS)


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """At import time; what is imported for typing or inside a function does not count."""
    graph = {
        name: {
            target
            for imported in module.imports
            if imported.at_top and not imported.typing_only
            for target in targets(module, imported)
            if target != name
        }
        for name, module in MODULES.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


# --- the rules bite -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "name", "source"),
    [
        (upward_imports, "picopyn.routing.x", "from picopyn.dialects.base import KeyHash"),
        (upward_imports, "picopyn.routing.x", "if TYPE_CHECKING:\n    from picopyn.engine import y"),
        (upward_imports, "picopyn.routing.x", "def f():\n    import picopyn.asynchronous.pool"),
        (upward_imports, "picopyn.errors", "from picopyn import routing"),
        (upward_imports, "picopyn.topology.x", "from ..routing import sharding"),
        (upward_imports, "picopyn.asynchronous.x", "from picopyn.sync.pool import Pool"),
        (imports_of_testing, "picopyn.asynchronous.x", "from picopyn.testing import PicodataCluster"),
        (imports_of_testing, "picopyn.testing.x", "from picopyn.topology import Topology"),
        (outside_world_in_pure_rooms, "picopyn.topology.x", "import time"),
        (outside_world_in_pure_rooms, "picopyn.routing.x", "import random\na = random.random()"),
        (outside_world_in_pure_rooms, "picopyn.routing.x", "import random\na = random.Random()"),
        (outside_world_in_pure_rooms, "picopyn.routing.x", "from random import Random\nr = Random()"),
        (outside_world_in_pure_rooms, "picopyn.dialects.x", "import asyncio.events"),
        (
            outside_world_in_pure_rooms,
            "picopyn.dialects.x",
            "from datetime import datetime\nn = datetime.now(UTC)",
        ),
        (engine_laws, "picopyn.engine.x", "import asyncio"),
        (engine_laws, "picopyn.engine.x", "async def f(self):\n    with self._lock:\n        await g()"),
        (engine_laws, "picopyn.engine.x", "async def f():\n    try: ...\n    except CancelledError: ..."),
        (engine_laws, "picopyn.engine.x", "async def f():\n    yield 1"),
        (engine_laws, "picopyn.engine.x", "class A:\n    async def __aenter__(self): ..."),
        (sizes, "picopyn.x", "\n".join(f"a{i} = {i}" for i in range(401))),
        (sizes, "picopyn.x", "def f(a):\n" + "".join(f"    if a == {i}: ...\n" for i in range(11))),
        (
            sizes,
            "picopyn.x",
            "class A:\n    def f(self):\n" + "".join(f"        self.a{i} = 1\n" for i in range(13)),
        ),
        (missing_docstrings, "picopyn.x", "a = 1"),
        (missing_docstrings, "picopyn.x", '"""X."""\nclass A:\n    """A."""\n    def f(self): ...'),
        (vague_names, "picopyn.routing.key_utils", ""),
    ],
)
def test_a_rule_sees_what_breaks_it(rule: Callable[[Module], Iterator[str]], name: str, source: str) -> None:
    """Each rule finds the smallest thing it is there for."""
    assert list(rule(Module(name, source)))


@pytest.mark.parametrize(
    ("rule", "name", "source"),
    [
        (
            upward_imports,
            "picopyn.dialects.x",
            "from picopyn.errors import Fault\nfrom picopyn.routing import route",
        ),
        (upward_imports, "picopyn.query_metadata", "from picopyn.routing.route import StatementRoute"),
        (
            upward_imports,
            "picopyn.sync.x",
            "from picopyn.asynchronous.topology_tracker import TopologyTracker",
        ),
        (upward_imports, "picopyn.cli.x", "import picopyn\nfrom picopyn import testing"),
        (imports_of_testing, "picopyn.cli.x", "from picopyn.testing import PicodataCluster"),
        (
            outside_world_in_pure_rooms,
            "picopyn.routing.x",
            "from random import Random\ndef f(rng: Random): ...",
        ),
        (
            engine_laws,
            "picopyn.engine.x",
            "async def f(self):\n    with self._lock:\n        a = 1\n    await g()",
        ),
        (sizes, "picopyn.x", '"""' + "\n" * 500 + '"""\n# no code\n'),
        (missing_docstrings, "picopyn.x", '"""X."""\ndef f():\n    """F."""\n    def g(): ...\n'),
    ],
)
def test_a_rule_lets_the_right_thing_pass(rule: Callable[[Module], Iterator[str]], name: str, source: str) -> None:
    """No rule is in the way of what it wants."""
    assert list(rule(Module(name, source))) == []
