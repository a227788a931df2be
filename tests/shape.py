"""Measure the shape of the package: `python -m tests.shape` prints the figures, `--details` also the counted items.

`tests/test_shape.py` holds them below bounds that only shrink.
"""

from __future__ import annotations

import ast
import functools
import gc
import json
import logging
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import attrs

import flowckpt
from flowckpt import FileCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.engine.run.live import WATCH
from flowckpt.errors import FlowckptError

ROOT = Path(flowckpt.__file__).parent
FIELDS, LONG, TOO_LONG = 15, 60, 80
"""Classes with more fields count as large, functions with more lines as long."""

LATER = {
    "reports, graphs, the local page": ("cli/commands/report", "cli/commands/ui", "cli/ui/*", "report/*"),
    "exploring crashes, help for tests": (
        *("testing/crash_child", "testing/crashes", "testing/tester", "testing/plugin"),
        "testing/evidence_contract",
    ),
    "repair of damaged runs": ("stores/*/repair", "testing/repair"),
    "a mirror store": ("maintenance/mirror",),
    "what runs show and send while they run": ("engine/run/live", "engine/session/outbox"),
    "the debugger": ("cli/commands/debug", "engine/dry/time_travel"),
    "traces and metrics": ("otel",),
    "hooks at the end of a run": ("cli/hooks",),
    "results of other runs": ("engine/run/result_cache",),
    "runs in generations": ("core/records/generation", "testing/generations"),
    "another SQLite": ("stores/sqlite/library",),
    "files of steps": ("execution/files",),
    "the default engine in one call": ("front",),
    "classes of the program in records": ("core/identity/classes",),
}
"""Features that are newer than the layout of the package, with the modules that only they need."""

_NO_CODE = re.compile(r"\s*(#.*)?")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DESCRIBED = (ast.Module, ast.ClassDef, *_FUNCTIONS)


@attrs.frozen
class Module:
    """A module of the package: its dotted name, its text and its syntax tree."""

    name: str
    file: Path
    text: str
    tree: ast.Module
    nodes: list[ast.AST] = attrs.field(init=False)
    """All nodes of the tree, cached because walking it for each figure took half of the time."""

    @nodes.default
    def _walked(self) -> list[ast.AST]:
        return [*ast.walk(self.tree)]

    @property
    def place(self) -> str:
        return self.file.relative_to(ROOT).as_posix()

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def written_lines(self) -> int:
        """Lines that are neither blank nor a comment: `grep -cvE '^[[:space:]]*(#.*)?$'`."""
        return sum(_NO_CODE.fullmatch(line) is None for line in self.text.splitlines())

    @property
    def code_lines(self) -> int:
        """Lines that are neither blank nor a comment nor in a docstring."""
        described = {
            number
            for node in self.nodes
            if isinstance(node, _DESCRIBED)
            for text in node.body
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            for number in range(text.lineno, (text.end_lineno or text.lineno) + 1)
        }
        lines = enumerate(self.text.splitlines(), 1)
        return sum(number not in described and _NO_CODE.fullmatch(line) is None for number, line in lines)


@functools.cache
def modules() -> dict[str, Module]:
    """Return the modules by name."""
    found = {}
    for file in sorted(ROOT.rglob("*.py")):
        parts = [ROOT.name, *file.relative_to(ROOT).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = file.read_text("utf-8")
        found[name] = Module(name, file, text, ast.parse(text, str(file)))
    return found


def later_modules() -> dict[str, list[Module]]:
    """Return the modules that only a later feature needs, by feature."""
    return {
        feature: [each for each in modules().values() if any(fnmatch(each.place, f"{name}.py") for name in names)]
        for feature, names in LATER.items()
    }


# --- classes, functions, protocols -------------------------------------------------------------------------------------


def large_classes() -> dict[str, int]:
    """Return the classes with too many fields, records excepted, as `module:Class`."""
    found = {}
    for module in modules().values():
        for node in module.nodes:
            if (
                isinstance(node, ast.ClassDef)
                and (count := len(fields_of(node))) > FIELDS
                and not _is_record(node, module)
            ):
                found[f"{module.place}:{node.name}"] = count
    return found


def fields_of(node: ast.ClassDef) -> set[str]:
    """Return the fields of a class: the annotated names of an attrs class, else the attributes that its methods assign."""
    if any(_last_name(each) in ("define", "frozen", "mutable", "dataclass") for each in node.decorator_list):
        annotated = (each for each in node.body if isinstance(each, ast.AnnAssign))
        return {
            each.target.id
            for each in annotated
            if isinstance(each.target, ast.Name) and "ClassVar" not in ast.unparse(each.annotation)
        }
    return {
        target.attr
        for method in node.body
        if isinstance(method, _FUNCTIONS)
        for each in ast.walk(method)
        if isinstance(each, ast.Assign | ast.AnnAssign)
        for target in _targets(each)
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    }


def _targets(node: ast.Assign | ast.AnnAssign) -> Iterator[ast.expr]:
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        yield from target.elts if isinstance(target, ast.Tuple) else [target]


def _is_record(node: ast.ClassDef, module: Module) -> bool:
    """Return whether a class is a frozen class among the records, the events, or the values of the public interface."""
    is_frozen = any("frozen" in ast.unparse(each) for each in node.decorator_list)
    return is_frozen and ({"records", "checkpoint", "events", "values"} & set(module.name.split(".")) != set())


def long_functions(most: int) -> dict[str, int]:
    """Return the functions with more lines, including the docstring, as `module:function`."""
    return {
        f"{module.place}:{node.name}": length
        for module in modules().values()
        for node in module.nodes
        if isinstance(node, _FUNCTIONS) and (length := (node.end_lineno or 0) - node.lineno + 1) > most
    }


def store_protocols() -> dict[str, str]:
    """Return the protocols of the stores, with the module of each."""
    return {
        node.name: module.place
        for module in modules().values()
        if module.name.startswith("flowckpt.stores.")
        for node in module.nodes
        if isinstance(node, ast.ClassDef) and any(_last_name(base) == "Protocol" for base in node.bases)
    }


def store_checks() -> list[str]:
    """Return the places where `isinstance` checks for a protocol of the stores."""
    protocols = set(store_protocols())
    return [
        f"{module.place}:{node.lineno}"
        for module in modules().values()
        for node in module.nodes
        if isinstance(node, ast.Call)
        and _last_name(node.func) == "isinstance"
        and len(node.args) == 2
        and {_last_name(each) for each in ast.walk(node.args[1]) if isinstance(each, ast.expr)} & protocols
    ]


def _last_name(node: ast.expr) -> str:
    """Return the name in `name`, `package.name`, `name(…)` and `name[…]`."""
    match node:
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return _last_name(inner)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


# --- imports ---------------------------------------------------------------------------------------------------------


def lazy_imports() -> list[tuple[str, set[str]]]:
    """Return each lazy import: the module that has it, and what it may import.

    A lazy import is a `LazyModule(…)`, or a package whose `__getattr__` imports its names.
    """
    found: list[tuple[str, set[str]]] = []
    for module in modules().values():
        for node in module.nodes:
            if isinstance(node, ast.Call) and _last_name(node.func) == "LazyModule":
                words = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
                found.append((module.name, words & modules().keys()))
        for statement in module.tree.body:
            names = {statement.name} if isinstance(statement, _FUNCTIONS) else set()
            if isinstance(statement, ast.Assign):
                targets = (each for target in statement.targets for each in ast.walk(target))
                names = {each.id for each in targets if isinstance(each, ast.Name)}
            if "__getattr__" in names:
                found.append((module.name, set()))
    return found


def imports(module: Module) -> set[str]:
    """Return the modules of the package that a module imports at its own import, not for type checkers or in functions."""
    found: set[str] = set()
    for node in _run_at_import(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.name if module.file.name == "__init__.py" else module.name.rpartition(".")[0]
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in modules() else base)
    return found & modules().keys()


def _run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*_FUNCTIONS, ast.Lambda)):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield other
                yield from _run_at_import(other)
            continue
        yield child
        yield from _run_at_import(child)


def import_cycles() -> list[list[str]]:
    """Return the groups of modules in import cycles, also inside a package."""
    return circles({name: imports(module) for name, module in modules().items()})


def lazy_cycles() -> list[list[str]]:
    """Return the import cycles if lazy imports count, too."""
    graph = {name: imports(module) for name, module in modules().items()}
    for name, imported in lazy_imports():
        graph[name] |= imported
    return circles(graph)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan, without recursion)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for start in graph:
        if start in index:
            continue
        index[start] = lowest[start] = len(index)
        stack.append(start)
        work = [(start, iter(sorted(graph[start])))]
        while work:
            name, following = work[-1]
            for other in following:
                if other not in index:
                    index[other] = lowest[other] = len(index)
                    stack.append(other)
                    work.append((other, iter(sorted(graph[other]))))
                    break
                if other in stack:
                    lowest[name] = min(lowest[name], index[other])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[name])
                if lowest[name] == index[name]:
                    at = stack.index(name)
                    group, stack[at:] = sorted(stack[at:]), []
                    if len(group) > 1 or name in graph[name]:
                        found.append(group)
    return found


# --- the path of the data ---------------------------------------------------------------------------------------------


@attrs.define
class Crossed:
    """The modules whose functions are called, and how often a call enters another module than the previous call."""

    modules: set[str] = attrs.field(factory=set)
    moves: int = 0
    _last: str = ""

    def enter(self, code: CodeType) -> None:
        name = _module_of(code)
        if name:
            self.modules.add(name)
            self.moves += name != self._last
            self._last = name


@functools.cache
def _module_of(code: CodeType) -> str:
    """Return the module of a function of the package; None for other code, and for bodies of modules and classes."""
    is_function = code.co_flags & 0x1  # CO_OPTIMIZED
    if not is_function or not code.co_filename.startswith(f"{ROOT}/"):
        return ""
    return Path(code.co_filename).relative_to(ROOT).as_posix()


@contextmanager
def _unheard() -> Iterator[None]:
    """Disable the log of events, which pytest's handlers would enable."""
    events = logging.getLogger("flowckpt.events")
    events.disabled = True
    try:
        yield
    finally:
        events.disabled = False


@contextmanager
def _recorded() -> Iterator[Crossed]:
    crossed = Crossed()

    def saw(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            crossed.enter(frame.f_code)

    sys.setprofile(saw)
    try:
        yield crossed
    finally:
        sys.setprofile(None)


def _same(number: int) -> int:
    return number


def crossed_by_a_step() -> Crossed:
    """Measure a step from its `yield` to the value in the generator, with an acknowledged checkpoint."""
    recording = _recorded()
    crossed = Crossed()

    @workflow("crossing")
    def crossing() -> Iterator[Any]:
        nonlocal crossed
        for number in range(3):  # the first step imports modules and fills caches
            made = step("work").python(_same, number).checkpoint()
            if number == 2:
                crossed = recording.__enter__()
            yield made
        recording.__exit__(None, None, None)

    with tempfile.TemporaryDirectory() as directory, _unheard():
        WorkflowEngine(FileCheckpointStore(directory)).run_sync(crossing).unwrap()
    return crossed


class _Stopped(BaseException):
    is_wanted = False


def _work(number: int) -> int:
    if number == 1 and _Stopped.is_wanted:
        raise _Stopped
    return number


def crossed_by_a_resume() -> Crossed:
    """Measure `resume_sync` from another engine: one step is restored, and one is executed."""

    @workflow("crossing")
    def crossing() -> Iterator[Any]:
        for number in range(2):
            yield step("work").python(_work, number).checkpoint()

    with tempfile.TemporaryDirectory() as directory, _unheard():
        for name in ("warm", "measured"):  # the first resume imports modules and fills caches
            _Stopped.is_wanted = True
            try:
                WorkflowEngine(FileCheckpointStore(directory)).run_sync(crossing, workflow_id=name)
            except _Stopped:
                _Stopped.is_wanted = False
            engine = WorkflowEngine(FileCheckpointStore(directory))
            gc.collect()  # finalizers of objects of earlier tests would count as calls
            WATCH.start = lambda: None  # type: ignore[method-assign] # its thread may end just now: a start would count
            with _recorded() as crossed:
                engine.resume_sync(crossing, workflow_id=name).unwrap()
            del WATCH.start
    return crossed


_PIPELINE = """
from pathlib import Path
from flowckpt import step, workflow

def work(number):
    if number == 1 and not Path("ready").exists():
        raise ValueError("stop")
    return number

@workflow("plain")
def plain():
    for number in range(2):
        yield step("work").python(work, number).checkpoint()
"""

_COMMAND = """
import atexit, json, runpy, sys
atexit.register(lambda: json.dump([name for name in sys.modules if name.partition(".")[0] == "flowckpt"], open("loaded", "w")))
sys.argv = ["flowckpt", *sys.argv[1:]]
runpy.run_module("flowckpt", run_name="__main__", alter_sys=True)
"""


@functools.cache
def loaded_by_a_resume() -> list[str]:
    """Return the modules that a process has loaded when `flowckpt resume` of two steps ends."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "plain.py").write_text(_PIPELINE)
        for words, code in ((["run", "plain.py", "--id", "run"], 1), (["resume", "run"], 0)):
            done = subprocess.run(
                [sys.executable, "-c", _COMMAND, *words], cwd=directory, capture_output=True, text=True, check=False
            )
            if done.returncode != code:
                raise FlowckptError(f"flowckpt {words} ended with {done.returncode}: {done.stderr}")
            (directory / "ready").touch()
        return sorted(json.loads((directory / "loaded").read_text()))


# --- all of it --------------------------------------------------------------------------------------------------------


def figures() -> dict[str, int]:
    """Return the figures by name."""
    lines = sorted(module.lines for module in modules().values())
    step_way, resume_way = crossed_by_a_step(), crossed_by_a_resume()
    return {
        "modules": len(lines),
        "modules, those of later features left out": len(lines) - sum(map(len, later_modules().values())),
        "lines, comments and blanks left out": sum(module.written_lines for module in modules().values()),
        "code lines, docstrings left out too": sum(module.code_lines for module in modules().values()),
        "median module": int(statistics.median(lines)),
        "largest module": lines[-1],
        "modules crossed by a checkpointed step": len(step_way.modules),
        "moves between modules of a checkpointed step": step_way.moves,
        "modules crossed by a resume of two steps": len(resume_way.modules),
        "moves between modules of a resume of two steps": resume_way.moves,
        "modules loaded by flowckpt resume": len(loaded_by_a_resume()),
        "store protocols": len(store_protocols()),
        "isinstance checks on stores": len(store_checks()),
        "lazy doors": len({name for name, _ in lazy_imports()}),
        "classes of more than 15 fields": len(large_classes()),
        "functions of more than 60 lines": len(long_functions(LONG)),
        "functions of more than 80 lines": len(long_functions(TOO_LONG)),
        "import cycles": len(import_cycles()),
        "import cycles when lazy imports count": len(lazy_cycles()),
    }


def details() -> dict[str, Any]:
    """Return the items that the figures count."""
    return {
        "code lines of later features": {
            f"{feature} ({len(found)} modules)": sum(each.code_lines for each in found)
            for feature, found in later_modules().items()
        },
        "largest modules": {m.place: m.lines for m in sorted(modules().values(), key=lambda m: -m.lines)[:10]},
        "crossed by a checkpointed step": sorted(crossed_by_a_step().modules),
        "crossed by a resume of two steps": sorted(crossed_by_a_resume().modules),
        "store protocols": store_protocols(),
        "classes of more than 15 fields": large_classes(),
        "functions of more than 60 lines": long_functions(LONG),
        "import cycles": import_cycles(),
        "import cycles when lazy imports count": [
            f"{len(group)} modules: {', '.join(group[:8])} …" for group in lazy_cycles()
        ],
    }


if __name__ == "__main__":
    for label, figure in figures().items():
        print(f"{figure:>7,}  {label}")
    if "--details" in sys.argv:
        print(json.dumps(details(), indent=2))
