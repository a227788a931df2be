"""Random programs out of all constructs together, and what may be changed in them between two runs.

A program is a block: nodes one after another, each of which gets what those before it returned. A node is a step with a
function, a command, a wait, an answer of the world that is recorded, a map, a group, or a child workflow, which has a block
of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import attrs
from hypothesis import strategies as st

if TYPE_CHECKING:
    from composite_world import World


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
    is_race: bool = False
    """Whether a map stops at its first success; one call at a time, so that it is known which."""
    concurrency: int | None = None
    place: str = ""
    """Where its function runs, if that is said."""

    def __repr__(self) -> str:
        known = attrs.asdict(self, recurse=False)
        said = {each.name: known[each.name] for each in attrs.fields(Node) if known[each.name] != each.default}
        return f"Node({', '.join(f'{name}={value!r}' for name, value in said.items())})"


def all_nodes(block: tuple[Node, ...]) -> Iterator[Node]:
    for node in block:
        yield node
        yield from all_nodes(node.inner)


RECORDED = ("now", "uuid", "random")
PLAIN = ("pure", "async", "file", "file", "once", "fails", "flaky", "model", "command", *RECORDED)
WAITS = ("sleep", "wait", "timed", "approval")
RUNS = ("start", "mail", "reply")
"""Starts another run; sends a signal, here to the run itself, which waits for it; waits for a signal, and replies."""
LIVES = ("publish", "race", "race", "patient")
"""Publishes a value; takes the first of two, one of which never comes; fails once, and waits an hour for its next try."""
SENT = "sent"
"""Runs in another process: a function of a module that one can import."""
COMPOSITES = ("map", "map", "map", "group", "child")
WORKS = ("pure", "async", "file", "file", "once", "flaky", "odd", "lost", "child")
RACED = ("pure", "async", "file")
PLACED = ("pure", "file", "once", "flaky")


@st.composite
def programs(draw: st.DrawFn, *more: str, most: int = 4) -> tuple[Node, ...]:
    """Draw a program.

    Args:
        draw: draws.
        *more: kinds of nodes besides those that run without anybody outside.
        most: how many nodes it has at most, besides those inside others.
    """
    counter = itertools.count()
    return draw(_blocks(counter, 0, (*PLAIN, *more), most))


@st.composite
def _blocks(draw: st.DrawFn, counter: Any, depth: int, plain: tuple[str, ...], most: int = 2) -> tuple[Node, ...]:
    return tuple(draw(_nodes(counter, depth, plain)) for _ in range(draw(st.integers(1, most))))


@st.composite
def _nodes(draw: st.DrawFn, counter: Any, depth: int, plain: tuple[str, ...], *, is_member: bool = False) -> Node:
    number = next(counter)
    flat = tuple(each for each in plain if each != "race")
    kinds = (*plain, *COMPOSITES, *COMPOSITES, *COMPOSITES) if depth < 2 else flat
    kind = draw(st.sampled_from([each for each in kinds if not (is_member and each == "fails")]))
    name = draw(st.sampled_from(["loop", f"n{number}", f"n{number}"]))
    node = Node(number, kind, name, draw(st.sampled_from([True, True, False])))
    if kind in PLACED:
        node = attrs.evolve(node, place=draw(st.sampled_from(["", "", "thread"])))
    if kind in ("pure", "file", "once", "command", "map", "child"):
        node = attrs.evolve(node, is_undone=draw(st.booleans()))
    width = st.sampled_from([None, 1, 2])
    if kind == "group":
        inner = tuple(draw(_nodes(counter, depth + 1, plain, is_member=True)) for _ in range(draw(st.integers(1, 3))))
        return attrs.evolve(node, inner=inner, concurrency=draw(width))
    if kind == "race":
        return attrs.evolve(node, inner=(draw(_nodes(counter, depth + 1, flat, is_member=True)),))
    if kind == "child":
        return attrs.evolve(node, inner=draw(_blocks(counter, depth + 1, plain)))
    if kind == "map":
        works = draw(st.sampled_from([each for each in WORKS if not (is_member and each == "lost")]))
        values = draw(st.lists(st.integers(0, 9), max_size=4))
        return attrs.evolve(
            node,
            works=works,
            items=tuple((f"k{place}", value) for place, value in enumerate(values)),
            inner=draw(_blocks(counter, depth + 1, plain)) if works == "child" else (),
            is_keyed=draw(st.booleans()),
            is_generator=draw(st.booleans()),
            concurrency=draw(width),
            is_race="race" in plain and works in RACED and bool(values) and draw(st.booleans()),
            place=draw(st.sampled_from(["", "", "thread"])) if works in PLACED else "",
        )
    return node


CHANGES = ("edit", "delete", "constant", "edition", "version", "add", "add first", "remove", "change")
changes = st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 9)), max_size=2)


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
    """Return the nodes whose failure ends the run: the workflow does not handle it, and nothing tolerates it."""
    raced = {each.number for node in all_nodes(block) if node.kind == "race" for each in all_nodes(node.inner)}
    kinds = ("pure", "async", "file")
    return [each.number for each in all_nodes(block) if (each.works or each.kind) in kinds and each.number not in raced]
