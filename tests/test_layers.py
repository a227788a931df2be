"""The shape of the package: who may import whom, read from the imports themselves."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

import flowckpt

ROOT = Path(flowckpt.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

ROWS = {  # from the bottom up; imports go strictly downwards
    "declarations": ("core.system.declared",),
    "store errors": ("store_errors",),
    "errors": ("errors", "_version"),
    "system": ("core.system",),
    "records": ("core.records",),
    "language and codec": ("core", "core.dsl", "core.codec", "events"),
    "identity and replay": ("core.identity", "core.replay"),
    "ports": ("evidence", "stores"),
    "policy": ("execution", "maintenance"),
    "listeners": ("otel",),
    "engine: rules": ("engine.rules",),
    "engine: values": ("engine.values",),
    "engine: one attempt": ("engine.run",),
    "engine: steps": ("engine.steps",),
    "engine: dry drives": ("engine.dry",),
    "engine: other histories": ("engine.undo", "engine.history", "engine.loops"),
    "engine: sessions": ("engine.session",),
    "engine: door": ("engine.engine",),
    "engine: face": ("engine",),
    "engine: checks": ("engine.determinism",),
    "pages": ("report",),
    "help for tests": ("testing",),
    "edges": ("__main__", "cli"),
    "the default engine": ("front",),
    "front door": ("",),
}
HEIGHT = {part: height for height, parts in enumerate(ROWS.values()) for part in parts}
NEIGHBOURS_THAT_MEET = {("__main__", "cli")}
"""`python -m flowckpt` is the command line and nothing more."""

IMPORTS_IN_FUNCTIONS = {
    "core/system/ids.py": {"ulid"},
    "stores/sqlite/library.py": {"apsw"},
    "cli/*": None,
    "otel.py": None,
}
"""Where a function may import, and what; None for anything."""

IMPORTS_BY_NAME = {
    "__init__.py",
    "core/system/external.py",
    "core/system/lazy.py",
    "core/records/__init__.py",
    "stores/__init__.py",
    "evidence/*",
    "engine/values/target.py",
    "execution/remote/task.py",
    "core/system/attrs_base.py",  # the pages that a notebook shows
    "engine/dry/time_travel.py",
    "testing/crashes.py",  # what a forked process has imported
    "cli/*",
    "front.py",  # the display, if a program wants to see the progress
}
"""Where a module may be imported by a name that a program has put together."""

MOST_LINES = 900
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "tools", "base_utils", "shared"}


def name_of(file: Path) -> str:
    parts = [*file.relative_to(ROOT).with_suffix("").parts]
    return ".".join(["flowckpt", *(parts[:-1] if parts[-1] == "__init__" else parts)])


MODULES = {name_of(file) for file in FILES}


def part_of(module: str) -> str:
    """The part of the table that a module belongs to: its longest prefix there."""
    inner = module.removeprefix("flowckpt").removeprefix(".")
    while inner and inner not in HEIGHT:
        inner = inner.rpartition(".")[0]
    return inner


def imported(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """The modules of flowckpt that a module imports: plainly, for type checkers only, lazily, or by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")[: (None if is_package and node.level == 1 else is_package - node.level)]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield node.lineno, inner if inner in MODULES else base
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "LazyModule", "__import__"):
            if node.args and isinstance(node.args[0], ast.Constant):
                yield node.lineno, str(node.args[0].value)


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"), str(file))


@pytest.fixture(autouse=True, scope="module")
def forgotten():
    """Let the trees go behind the last test: the garbage collector would look at them for the rest of the run."""
    yield
    parsed.cache_clear()


def place(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def is_package(file: Path) -> bool:
    return file.name == "__init__.py"


def wrong_imports(tree: ast.Module, module: str, *, is_package: bool = False) -> list[str]:
    """What a module imports against the table."""
    mine, found = part_of(module), []
    for line, name in imported(tree, module, is_package=is_package):
        if name != "flowckpt" and not name.startswith("flowckpt."):
            continue
        theirs = part_of(name)
        if theirs == mine and (mine or name == module):
            continue  # inside one room
        if HEIGHT[theirs] >= HEIGHT[mine] and (mine, theirs) not in NEIGHBOURS_THAT_MEET:
            found.append(f"line {line}: {module} imports {name}")
    return found


def test_every_module_has_its_row():
    assert not [name for name in MODULES if part_of(name) == "" and name != "flowckpt"]


def test_imports_go_downwards_only():
    wrong = {place(file): wrong_imports(parsed(file), name_of(file), is_package=is_package(file)) for file in FILES}
    assert not {file: found for file, found in wrong.items() if found}


@pytest.mark.parametrize(
    ("module", "source", "is_wrong"),
    [
        ("flowckpt.core.codec.tags", "from flowckpt.errors import DecodingError", False),
        ("flowckpt.core.codec.tags", "from flowckpt.core.codec import fitting", False),
        ("flowckpt.core.codec.tags", "from flowckpt.core.records import StepResult", False),
        ("flowckpt.core.codec.tags", "from flowckpt.core.dsl import Step", True),
        ("flowckpt.core.codec.tags", "from flowckpt.core.identity import fingerprint", True),
        ("flowckpt.core.codec.tags", "import flowckpt.core.identity.fingerprint", True),
        ("flowckpt.core.codec.tags", "from flowckpt import StepResult", True),
        ("flowckpt.core.codec.tags", "from ...stores import base", True),
        ("flowckpt.core.codec.tags", "from . import fitting", False),
        ("flowckpt.core.dsl.step", "from flowckpt.core.replay import Replay", True),
        ("flowckpt.errors", "if TYPE_CHECKING:\n    from flowckpt.core.dsl import Step", True),
        ("flowckpt.errors", "def f():\n    from flowckpt.core.dsl import Step", True),
        ("flowckpt.errors", "engine = LazyModule('flowckpt.engine')", True),
        ("flowckpt.errors", "importlib.import_module('flowckpt.engine')", True),
        ("flowckpt.errors", "import clock", False),
        ("flowckpt.engine.engine", "from flowckpt.stores.base import Lease", False),
        ("flowckpt.engine.rules.plan", "from flowckpt.engine.run import context", True),
        ("flowckpt.engine.session.drive", "from flowckpt.engine.run import context", False),
        ("flowckpt.evidence.verifier", "from flowckpt.evidence.claims import Evidence", False),
        ("flowckpt.evidence.verifier", "from flowckpt.core.codec import encode", False),
        ("flowckpt.evidence.verifier", "from flowckpt.stores.base import CheckpointStore", True),
        ("flowckpt.__main__", "from flowckpt.cli import main", False),
        ("flowckpt.testing.clock", "from flowckpt.cli import main", True),
        ("flowckpt", "from flowckpt.engine import WorkflowEngine", False),
    ],
)
def test_the_check_tells_right_imports_from_wrong_ones(module, source, is_wrong):
    assert bool(wrong_imports(ast.parse(source), module)) == is_wrong


def imported_in_functions(tree: ast.Module) -> set[str]:
    found = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    found |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    found.add(node.module or ".")
    return found


def test_functions_import_nothing_but_where_a_quick_start_needs_it():
    wrong = {}
    for file in FILES:
        allowed: set[str] | None = set()
        for pattern, names in IMPORTS_IN_FUNCTIONS.items():
            if fnmatch(place(file), pattern):
                allowed = names
        found = imported_in_functions(parsed(file))
        if allowed is not None and not found <= allowed:
            wrong[place(file)] = found - allowed
    assert not wrong


def test_the_check_finds_what_a_function_imports():
    source = "import a\ndef f():\n    import b\n    async def g():\n        from c import d\n        from . import e"
    assert imported_in_functions(ast.parse(source)) == {"b", "c", "."}


def imports_by_name(tree: ast.Module) -> list[int]:
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__", "exec_module")
    ]


def test_modules_are_imported_by_name_only_where_that_is_the_point():
    uses = {place(file): imports_by_name(parsed(file)) for file in FILES}
    assert not {
        file: lines
        for file, lines in uses.items()
        if lines and not any(fnmatch(file, pattern) for pattern in IMPORTS_BY_NAME)
    }
    assert any(uses.values())


def test_a_module_is_short_and_named_after_what_is_in_it():
    lengths = {place(file): len(file.read_text("utf-8").splitlines()) for file in FILES}
    long = {file: length for file, length in lengths.items() if length > MOST_LINES}
    assert not long
    assert not [place(file) for file in FILES if VAGUE & set(file.relative_to(ROOT).with_suffix("").parts)]


def test_a_module_holds_a_whole_concept():
    lengths = sorted(len(file.read_text("utf-8").splitlines()) for file in FILES if file.name != "__init__.py")
    assert 100 <= lengths[len(lengths) // 2] <= 300


def eager_imports(tree: ast.Module, module: str, *, is_package: bool) -> set[str]:
    """The modules that are imported as soon as this one is: not lazily, not for type checkers only."""
    plain = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
    return {name for _, name in imported(plain, module, is_package=is_package) if name in MODULES} - {module}


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """The paths along which a module imports itself."""
    found, finished = [], set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            found.append([*path[path.index(module) :], module])
        elif module not in finished:
            for name in sorted(arrows.get(module, ())):
                visit(name, (*path, module))
            finished.add(module)

    for module in sorted(arrows):
        visit(module, ())
    return found


def test_no_module_imports_itself_through_others():
    arrows = {name_of(file): eager_imports(parsed(file), name_of(file), is_package=is_package(file)) for file in FILES}
    assert not circles(arrows)


def test_the_check_finds_a_circle():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c", "a"]]


@pytest.mark.parametrize("part", ["core.replay", "core.codec", "core.identity"])
def test_the_rules_are_pure(part):
    """No I/O, no clock, no loop: what they need of the world is given to them."""
    impure = {
        "asyncio",
        "os",
        "io",
        "socket",
        "subprocess",
        "sqlite3",
        "time",
        "random",
        "secrets",
        "tempfile",
        "shutil",
    }
    for file in FILES:
        if part_of(name_of(file)) == part:
            found = {name for _, name in imported(parsed(file), name_of(file), is_package=False)}
            assert not found & impure, place(file)
            calls = {_called(node) for node in ast.walk(parsed(file)) if isinstance(node, ast.Call)}
            assert not calls & {
                "open",
                "now",
                "utcnow",
                "today",
                "read_text",
                "write_text",
                "read_bytes",
                "write_bytes",
            }
