"""A recorded step that a glance shows to be the same is restored without a closer look: with the very same end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from enum import StrEnum
from pathlib import Path
from typing import Any

import attrs
import pytest

from flowckpt import RunOptions, Secret, WorkflowEngine, WorkflowResult, step, workflow
from flowckpt.engine.steps import run_step
from flowckpt.engine.steps.run_step import UNSURE
from flowckpt.errors import FlowckptError, StepFailedError
from flowckpt.evidence import file_sha256


@attrs.define
class World:
    """What the steps do, and what is told of them."""

    is_resumed: bool = False
    fails_again: bool = False
    version: str | None = None
    argument: Any = 1
    is_undoable: bool = False
    is_named: bool = False
    claims: tuple[Any, ...] = ()
    before: int = 1
    ran: list[str] = attrs.field(factory=list)


world = World()


def first(number: int) -> int:
    world.ran.append(f"first {number}")
    return number + 1


def work(argument: Any) -> int:
    world.ran.append(f"work {argument if not isinstance(argument, int) or argument < 1 << 70 else 'large'}")
    return 7


def listed(number: int) -> list[int]:
    world.ran.append(f"listed {number}")
    return [number]


class Colour(StrEnum):
    RED = "red"


def coloured(number: int) -> Colour:
    world.ran.append(f"coloured {number}")
    return Colour.RED


def refused(number: int) -> int:
    world.ran.append(f"refused {number}")
    raise ValueError("no")


def end(number: int) -> int:
    world.ran.append(f"end {number}")
    if not world.is_resumed or world.fails_again:
        raise RuntimeError("here it stops")
    return number


def undo(output: int) -> None:
    world.ran.append(f"undo {output}")


@workflow("lane")
def lane(token: Secret[str] | None = None) -> Generator[Any, Any, int]:
    number = yield step("first").python(first, world.before).checkpoint()
    middle = step("work").python(work, world.argument).checkpoint()
    if world.is_named:
        middle = step("work").python(work, argument=world.argument).checkpoint()
    if world.version is not None:
        middle = middle.version(world.version)
    if world.is_undoable:
        middle = middle.rollback(undo)
    if world.claims:
        middle = middle.evidence(*world.claims)
    found = yield middle
    (same,) = yield step("listed").python(listed, found).checkpoint()
    colour = yield step("coloured").python(coloured, same).checkpoint()
    assert type(colour) is Colour
    try:
        yield step("refused").python(refused, same).checkpoint()
        same = 1000
    except StepFailedError:
        same += 1
    return (yield step("end").python(end, number + same).checkpoint())


@attrs.frozen
class Case:
    """What is before the crash, what is behind it, and how many of five recorded steps a glance is enough for."""

    glances: int
    before: dict[str, Any] = attrs.field(factory=dict)
    behind: dict[str, Any] = attrs.field(factory=dict)
    options: dict[str, Any] = attrs.field(factory=dict)
    is_heard: bool = False
    inputs: dict[str, Any] = attrs.field(factory=dict)


CASES = {
    "nothing has moved": Case(3),
    "somebody listens": Case(0, is_heard=True),
    "the version tag has moved": Case(1, behind={"version": "2"}, options={"rolls_back": False}),
    "the version tag stands": Case(3, before={"version": "2"}),
    "an argument has moved": Case(1, behind={"argument": 2}),
    "an argument is equal and of another type": Case(1, behind={"argument": True}),
    "an argument has more digits than Python writes": Case(1, behind={"argument": 10**5000}),
    "an argument is passed by name": Case(3, before={"is_named": True}),
    "an argument is passed by name now": Case(3, behind={"is_named": True}),
    "an argument that is passed by name has moved": Case(1, before={"is_named": True}, behind={"argument": 2}),
    "text is passed by name": Case(3, before={"is_named": True, "argument": "x"}),
    "an argument is text": Case(3, before={"argument": "x"}),
    "an argument is other text": Case(1, before={"argument": "x"}, behind={"argument": "y"}),
    "an argument cannot be compared": Case(3, before={"argument": print}),
    "the first argument has moved": Case(0, behind={"before": 5}),
    "the first has moved, and inputs are reused": Case(0, behind={"before": 5}, options={"reuse": "inputs"}),
    "stale results are reused": Case(2, behind={"argument": 2}, options={"on_stale": "reuse"}),
    "stale results stop it": Case(1, behind={"argument": 2}, options={"on_stale": "fail"}),
    "run again from a step on": Case(0, options={"from_step": "work"}),
    "run again from a step on, inputs reused": Case(0, options={"from_step": "work", "reuse": "inputs"}),
    "it fails again and is undone": Case(2, before={"is_undoable": True}, behind={"fails_again": True}),
    "the step says for the first time how it is undone": Case(2, behind={"is_undoable": True, "fails_again": True}),
    "a claim holds": Case(2, before={"claims": (file_sha256(Path(__file__)),)}),
    "a claim no longer holds": Case(1, before={"claims": (file_sha256(Path("fleeting")),)}),
    "a secret is known": Case(0, inputs={"token": Secret("hush-hush-1")}),
}


def driven(case: Case, store: Callable[[], Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run it to its failure and resume it once; return all that could be seen of the resume."""
    global world
    monkeypatch.chdir(folder)
    Path("fleeting").touch()
    world = World(**case.before)
    stopped = WorkflowEngine(store()).run_sync(
        lane, workflow_id="run", options=RunOptions(rolls_back=False), **case.inputs
    )
    assert stopped.status == "failed"
    Path("fleeting").unlink()
    world = World(**{**case.before, **case.behind}, is_resumed=True)
    engine, events = WorkflowEngine(store()), []
    taken = engine.prepare_resume(lane, "run", RunOptions(**case.options), case.inputs)
    found: WorkflowResult | str
    try:
        found = engine.drive_sync(taken, on_event=events.append if case.is_heard else None)
    except FlowckptError as error:
        return {"error": str(error), "ran": world.ran}
    told = [(type(event).__name__, getattr(event, "path", "")) for event in events]
    failure = None if found.failure is None else found.failure.message
    return {
        "status": found.status,
        "output": found.output,
        "steps": found.steps,
        "undone": found.undone,
        "failure": failure,
        "ran": world.ran,
        "told": told,
    }


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_glance_ends_as_a_closer_look_does(
    case: Case, reopen: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    glances = []
    make_glance = run_step.make_glance

    def counted(attempt: Any) -> Any:
        glance = make_glance(attempt)

        def look(step: Any, result: Any) -> Any:
            value = UNSURE if glance is None else glance(step, result)
            if value is not UNSURE:
                glances.append(result.path)
            return value

        return look

    monkeypatch.setattr(run_step, "make_glance", counted)
    quick = driven(case, reopen, tmp_path, monkeypatch)
    monkeypatch.setattr(run_step, "make_glance", lambda attempt: None)
    asyncio.run(reopen().clear("run"))
    thorough = driven(case, reopen, tmp_path, monkeypatch)
    assert quick == thorough
    # A list is taken unseen where a line of a file proves that it needs no decoding.
    assert len([path for path in glances if path != "listed"]) == case.glances
