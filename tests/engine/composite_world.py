"""Random programs out of all constructs together, and the world that their steps act upon.

A program is a block: nodes one after another, each of which gets what those before it returned. A node is a step with a
function, a map, a group, or a child workflow, which has a block of its own. What a step does is noted; files are named
after the step's arguments, so an edited program writes other files and leaves the old ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import sys
import threading
import types
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from hypothesis import strategies as st

from flowckpt import current_step, parallel, step, workflow
from flowckpt.abandoned import AbandonedStepError
from flowckpt.dsl import Workflow
from flowckpt.errors import StepFailedError
from flowckpt.evidence import file_sha256

_numbers = itertools.count()


@attrs.frozen(repr=False)
class Node:
    """A node of a program."""

    number: int
    kind: str
    name: str
    has_checkpoint: bool = True
    is_undone: bool = False
    constant: int = 0
    edition: int = 0
    version: str | None = None
    inner: tuple[Node, ...] = ()
    """The steps of a group; the block of a child workflow, or of the one that is run for each item."""
    works: str = ""
    """What a map does with an item."""
    items: tuple[tuple[str, int], ...] = ()
    is_keyed: bool = False
    is_generator: bool = False
    concurrency: int | None = None

    def __repr__(self) -> str:
        known = attrs.asdict(self, recurse=False)
        said = {each.name: known[each.name] for each in attrs.fields(Node) if known[each.name] != each.default}
        return f"Node({', '.join(f'{name}={value!r}' for name, value in said.items())})"


def all_nodes(block: tuple[Node, ...]) -> Iterator[Node]:
    for node in block:
        yield node
        yield from all_nodes(node.inner)


PLAIN = ("pure", "async", "file", "file", "once", "fails", "model")
COMPOSITES = ("map", "map", "map", "group", "child")
WORKS = ("pure", "async", "file", "file", "once", "odd", "lost", "child")


@st.composite
def programs(draw: st.DrawFn) -> tuple[Node, ...]:
    counter = itertools.count()
    return draw(_blocks(counter, 0))


@st.composite
def _blocks(draw: st.DrawFn, counter: Any, depth: int) -> tuple[Node, ...]:
    return tuple(draw(_nodes(counter, depth)) for _ in range(draw(st.integers(1, 4 if depth == 0 else 2))))


@st.composite
def _nodes(draw: st.DrawFn, counter: Any, depth: int, *, is_member: bool = False) -> Node:
    number = next(counter)
    kinds = (*PLAIN, *COMPOSITES, *COMPOSITES) if depth < 2 else PLAIN
    kind = draw(st.sampled_from([each for each in kinds if not (is_member and each == "fails")]))
    name = draw(st.sampled_from(["loop", f"n{number}", f"n{number}"]))
    node = Node(number, kind, name, draw(st.sampled_from([True, True, False])))
    if kind in ("pure", "file", "map", "child"):
        node = attrs.evolve(node, is_undone=draw(st.sampled_from([True, False, False])))
    width = st.sampled_from([None, 1, 2])
    if kind == "group":
        inner = tuple(draw(_nodes(counter, depth + 1, is_member=True)) for _ in range(draw(st.integers(1, 3))))
        return attrs.evolve(node, inner=inner, concurrency=draw(width))
    if kind == "child":
        return attrs.evolve(node, inner=draw(_blocks(counter, depth + 1)))
    if kind == "map":
        works = draw(st.sampled_from([each for each in WORKS if not (is_member and each == "lost")]))
        values = draw(st.lists(st.integers(0, 9), max_size=4))
        return attrs.evolve(
            node,
            works=works,
            items=tuple((f"k{place}", value) for place, value in enumerate(values)),
            inner=draw(_blocks(counter, depth + 1)) if works == "child" else (),
            is_keyed=draw(st.booleans()),
            is_generator=draw(st.booleans()),
            concurrency=draw(width),
        )
    return node


CHANGES = ("edit", "delete", "constant", "edition", "version", "add", "add first", "remove", "change")
changes = st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 9)), max_size=2)


class World:
    """A directory, the code of the steps in its present edition, and what the steps did."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.done: list[str] = []
        self.undone: list[str] = []
        self.twice: list[str] = []
        self.broken = -1
        self.standing: set[str] = set()
        self.asked_for: set[str] = set()
        """Steps of which somebody said that they are to be done again, or mean something else now."""
        self.is_all_asked_for = False
        self._once: dict[str, str] = {}
        self._process = 0
        self._lock = threading.Lock()

    def act(self, process: int, number: int, kind: str, told: tuple[Any, ...], said: str) -> str:
        """Do the work of a step; its code calls it with what it makes of its arguments."""
        path = current_step().path
        with self._lock:
            if process != self._process:  # a thread of a process that is dead by now
                raise AbandonedStepError
            if kind != "model":  # that is done at each replay
                self.done.append(path)
            if number == self.broken:
                raise OSError("broken")
            if kind == "fails" or (kind in ("odd", "lost") and told[0][1] % 2):
                raise ValueError("odd")
            name = name_of(number, told)
            file = self.root / name
            if kind == "once":
                if (
                    path not in self.asked_for
                    and not self.is_all_asked_for
                    and self._once.get(path) == said
                    and file.exists()
                    and file.read_text() == said
                ):
                    self.twice.append(path)
                self._once[path] = said
            if kind not in ("model", "lost"):  # those are done again, or not, as it happens
                self.standing.add(
                    name
                )  # first: who is stopped right behind its effect has done it, as its claims will say
            if kind in ("file", "once"):
                file.write_text(said)
        return f"{name}:{said}"

    def undo(self, output: Any) -> None:
        name = output.partition(":")[0] if isinstance(output, str) else ""
        with self._lock:
            self.undone.append(name)
            self.standing.discard(name)
            if name:
                (self.root / name).unlink(missing_ok=True)

    def claim(self, output: Any) -> Any:
        return file_sha256(self.root / output.partition(":")[0])

    def workflow(self, block: tuple[Node, ...]) -> Workflow[Any, Any]:
        """Import the program into a new process; the threads of the one before it can do nothing any more."""
        with self._lock:
            self._process += 1
        functions = self._functions(block)

        @workflow(name="random")
        def random() -> Generator[Any, Any, list[Any]]:
            return (yield from self._block(block, functions, "top"))

        return random

    def state(self) -> dict[str, str]:
        return {file.name: file.read_text() for file in sorted(self.root.iterdir())}

    def _functions(self, block: tuple[Node, ...]) -> dict[int, Any]:
        """Import the steps' functions in their editions: under the same names, with other bodies."""
        source = ""
        for node in all_nodes(block):
            kind = node.works or node.kind
            asynchronous, pause = ("async ", "    await sleep(0)\n") if kind == "async" else ("", "")
            source += (
                f"{asynchronous}def made{node.number}(*told):\n{pause}"
                f"    return act({node.number}, {kind!r}, told, digest({node.edition}, *told))\n\n"
            )
        file = self.root.parent / f"edition{next(_numbers)}.py"
        file.write_text(source)
        module = types.ModuleType("editions")
        module.__file__ = str(file)
        module.__dict__.update(act=partial(self.act, self._process), digest=digest, sleep=asyncio.sleep)
        sys.modules["editions"] = module
        exec(compile(source, str(file), "exec"), module.__dict__)
        return {node.number: module.__dict__[f"made{node.number}"] for node in all_nodes(block)}

    def _block(self, block: tuple[Node, ...], functions: dict[int, Any], seed: str) -> Generator[Any, Any, list[Any]]:
        outputs: list[Any] = []
        for node in block:
            try:
                output = yield self._step(node, functions, seed, outputs[-1] if outputs else None)
            except StepFailedError:
                if node.kind != "fails" and node.works != "lost":
                    raise
                output = "failed"
            if node.kind != "model":
                outputs.append(recorded(node, output))
        return outputs

    def _step(self, node: Node, functions: dict[int, Any], seed: str, last: Any) -> Any:
        made: Any = step(node.name)
        told = (node.constant, seed, digest(last))
        if node.kind == "group":
            steps = [self._step(each, functions, seed, last) for each in node.inner]
            made = parallel(*steps, name=node.name, concurrency=node.concurrency)
        elif node.kind == "child":
            made = made.workflow(self._child(node, functions), item=told)
        elif node.kind == "map":
            items: Any = [(key, value, *told) for key, value in node.items]
            function = self._child(node, functions) if node.works == "child" else functions[node.number]
            made = made.map(
                function,
                (each for each in items) if node.is_generator else items,
                key=first_of if node.is_keyed else None,
                concurrency=node.concurrency,
                tolerate=1.0 if node.works == "odd" else None,
            )
        else:
            made = made.python(functions[node.number], *told)
        kind = node.works or node.kind
        if kind == "model":
            return made.ephemeral()
        if node.version is not None:
            made = made.version(node.version)
        if node.has_checkpoint:
            made = made.checkpoint()
        if node.is_undone:
            made = made.rollback(self.undo)
        if kind == "file":
            made = made.evidence(self.claim)
        if kind == "once" and node.kind == "map":  # what its claims are is known when it has ended
            return made.evidence(self.claim).at_most_once()
        if kind == "once":
            name, said = name_of(node.number, told), digest(node.edition, *told)
            stated = hashlib.sha256(said.encode()).hexdigest()
            made = made.evidence(file_sha256(self.root / name, stated)).at_most_once()
            made = made.adopt(lambda *_: f"{name}:{said}")
        return made

    def _child(self, node: Node, functions: dict[int, Any]) -> Workflow[Any, Any]:
        @workflow(name=f"child{node.number}")
        def inside(item: Any) -> Generator[Any, Any, list[Any]]:
            return (yield from self._block(node.inner, functions, digest(item)))

        return inside


def recorded(node: Node, output: Any) -> Any:
    """Return what of an output is recorded: a plan does not have the rest."""
    if node.kind == "group" and output != "failed":
        return [recorded(each, of) for each, of in zip(node.inner, output, strict=True) if each.kind != "model"]
    return plain(output)


def plain(output: Any) -> Any:
    """Return an output whose tolerated failures are told by a word."""
    if isinstance(output, list | tuple):
        return [plain(each) for each in output]
    return "odd" if isinstance(output, StepFailedError) else output


def first_of(item: Any) -> str:
    return str(item[0])


def name_of(number: int, told: Any) -> str:
    return f"{number}-{digest(*told)}"


def digest(*told: Any) -> str:
    return hashlib.sha256(repr(told).encode()).hexdigest()[:12]


def changed(block: tuple[Node, ...], change: tuple[str, int], world: World, paths: list[str]) -> tuple[Node, ...]:
    """Return the program after a change of it, or change a file."""
    what, which = change
    if what in ("edit", "delete"):
        files = sorted(world.root.iterdir())
        if files:
            file = files[which % len(files)]
            file.write_text("edited") if what == "edit" else file.unlink()
        return block
    nodes = [node for node in all_nodes(block) if what in ("constant", "edition", "version") or node.kind == "map"]
    if not nodes:
        return block
    node = nodes[which % len(nodes)]
    items = node.items
    if what in ("constant", "edition"):
        other = attrs.evolve(node, **{what: getattr(node, what) + 1})
    elif what == "version":
        other = attrs.evolve(node, version=f"{node.version}+")
        world.asked_for.update(paths)
    elif what == "add":
        other = attrs.evolve(node, items=(*items, (f"k{len(items)}{which}", which)))
    elif what == "add first":
        other = attrs.evolve(node, items=((f"k{len(items)}{which}", which), *items))
    elif not items:
        return block
    elif what == "remove":
        other = attrs.evolve(node, items=items[: which % len(items)] + items[which % len(items) + 1 :])
    else:
        at = which % len(items)
        other = attrs.evolve(node, items=(*items[:at], (items[at][0], items[at][1] + 1), *items[at + 1 :]))
    return _replaced(block, other)


def _replaced(block: tuple[Node, ...], other: Node) -> tuple[Node, ...]:
    return tuple(
        attrs.evolve(other, inner=node.inner)
        if node.number == other.number
        else attrs.evolve(node, inner=_replaced(node.inner, other))
        for node in block
    )


def breakable(block: tuple[Node, ...]) -> list[int]:
    """Return the nodes whose failure ends the run: nobody handles it, and nothing tolerates it."""
    return [node.number for node in all_nodes(block) if (node.works or node.kind) in ("pure", "async", "file")]
