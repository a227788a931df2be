"""Forks and effects that can be undone: each is undone only by the run that made it, and none is reused once undone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import pytest
from workshop import paths

from flowckpt import MemoryCheckpointStore, WorkflowEngine, in_sync, parallel, step, workflow
from flowckpt.core.dsl import Workflow
from flowckpt.core.records import Status
from flowckpt.execution.interrupts import RunInterrupted

Reopen = Callable[[], Any]

ledger: list[str] = []
missing: set[str] = set()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ledger.clear()
    missing.clear()


def book(what: str) -> str:
    if what in missing:
        raise RuntimeError(f"no {what} is left")
    ledger.append(f"book {what}")
    return what


def undo(what: str) -> None:
    if f"undo {what}" in missing:
        raise KeyboardInterrupt
    ledger.append(f"undo {what}")


def undo_both(names: list[str]) -> None:
    ledger.append(f"undo {' and '.join(names)}")


@workflow
def trip() -> Generator[Any, Any, list[str]]:
    flight = yield step("flight").python(book, "flight").rollback(undo).checkpoint()
    yield step("mail").python(book, "mail").checkpoint()
    hotel = yield step("hotel").python(book, "hotel").rollback(undo).checkpoint()
    yield step("agreed").wait("agreed")
    car = yield step("car").python(book, "car").rollback(undo).checkpoint()
    return [flight, hotel, car, (yield step("train").python(book, "train").checkpoint())]


BOOKED = ["book flight", "book mail", "book hotel"]
UNDONE = ["undo hotel", "undo flight"]


def start(reopen: Reopen, *names: str, program: Workflow[Any, Any] = trip) -> WorkflowEngine:
    """Run to the end, except that some things are not to be had."""
    engine = WorkflowEngine(reopen())
    engine.run_sync(program, workflow_id="run")
    missing.update(names)
    in_sync(engine).signal("run", "agreed")
    engine.resume_sync(program, workflow_id="run")
    missing.clear()
    return engine


def take_new() -> list[str]:
    taken, ledger[:] = [*ledger], []
    return taken


# An effect that was undone is not taken over.


@pytest.mark.parametrize("checkpoint", ["", "flight", "mail", "hotel", "hotel@rollback"])
def test_a_fork_from_any_checkpoint_does_again_what_was_undone(reopen: Reopen, checkpoint: str) -> None:
    engine = start(reopen, "car")
    assert take_new() == [*BOOKED, *UNDONE]
    made = in_sync(engine).fork("run", new_id="new", checkpoint_id=checkpoint)
    assert made.steps == 0
    assert made.undone == (("flight",) if checkpoint in ("flight", "mail") else ("flight", "hotel"))
    WorkflowEngine(reopen()).resume_sync(trip, workflow_id="new")
    assert take_new() == BOOKED


def test_a_fork_of_a_cancelled_run_does_again_what_was_undone(reopen: Reopen) -> None:
    engine = WorkflowEngine(reopen())
    engine.run_sync(trip, workflow_id="run")
    in_sync(engine).cancel("run", workflow=trip)
    assert take_new() == [*BOOKED, *UNDONE]
    assert in_sync(engine).fork("run", new_id="new", checkpoint_id="hotel").undone == ("flight", "hotel")
    engine.resume_sync(trip, workflow_id="new")
    assert take_new() == BOOKED


@pytest.mark.parametrize("rolls_back", [False, True])
def test_only_what_was_undone_is_left_out(reopen: Reopen, rolls_back: bool) -> None:
    """After a cancel with `--no-rollback`, everything stands."""
    engine = WorkflowEngine(reopen())
    engine.run_sync(trip, workflow_id="run")
    in_sync(engine).cancel("run", workflow=trip, rolls_back=rolls_back)
    made = in_sync(engine).fork("run", new_id="new", checkpoint_id="mail")
    assert (made.steps, made.undone) == ((0, ("flight",)) if rolls_back else (2, ()))


@pytest.mark.parametrize("goes_back", [False, True])
def test_an_abandoned_checkpoint_knows_what_was_undone_after_it(reopen: Reopen, goes_back: bool) -> None:
    engine = start(reopen, "car")
    if goes_back:
        in_sync(engine).rollback("run", "hotel")
    engine.resume_sync(trip, workflow_id="run")  # books flight and hotel again
    assert take_new() == [*BOOKED, *UNDONE, *BOOKED]
    hotel = next(each for each in asyncio.run(engine.store.list_attempt("run", 1)) if each.checkpoint_id == "hotel")
    made = in_sync(engine).fork("run", new_id="new", checkpoint_id=str(hotel.sequence))
    assert (made.steps, made.undone) == (0, ("flight", "hotel"))
    newest = in_sync(engine).fork("run", new_id="other", checkpoint_id="hotel")
    assert (newest.steps, newest.undone) == (3, ())


def test_an_abandoned_checkpoint_whose_effects_stand_is_taken_over(reopen: Reopen) -> None:
    """The newest attempt has undone its own flight, not the one of the first attempt."""
    engine = start(reopen)
    hotel = next(each for each in asyncio.run(engine.store.list_checkpoints("run")) if each.checkpoint_id == "hotel")
    in_sync(engine).rollback("run", "@started")
    engine.resume_sync(trip, workflow_id="run")
    in_sync(engine).cancel("run", workflow=trip)
    made = in_sync(engine).fork("run", new_id="new", checkpoint_id=str(hotel.sequence))
    assert (made.steps, made.undone) == (3, ())


def test_what_a_broken_rollback_still_has_to_undo_is_not_taken_over(reopen: Reopen) -> None:
    engine = WorkflowEngine(reopen())
    engine.run_sync(trip, workflow_id="run")
    missing.update(("car", "undo flight"))
    in_sync(engine).signal("run", "agreed")
    with pytest.raises(RunInterrupted):
        engine.resume_sync(trip, workflow_id="run")
    missing.clear()
    assert take_new() == [*BOOKED, "undo hotel"]
    for new, checkpoint in (("new", ""), ("other", "hotel")):
        made = in_sync(engine).fork("run", new_id=new, checkpoint_id=checkpoint)
        assert (made.steps, made.undone) == (0, ("flight", "hotel"))
        assert engine.resume_sync(trip, workflow_id=new).status is Status.SUSPENDED
        assert take_new() == BOOKED
    engine.resume_sync(trip, workflow_id="run")
    assert take_new() == ["undo flight"]


@workflow
def once() -> Generator[Any, Any, Any]:
    yield step("pay").python(book, "pay").at_most_once().rollback(undo).checkpoint()
    return (yield step("car").python(book, "car"))


@pytest.mark.parametrize("checkpoint", ["", "pay"])
def test_an_undone_payment_is_not_in_doubt(reopen: Reopen, checkpoint: str) -> None:
    engine = WorkflowEngine(reopen())
    missing.add("car")
    engine.run_sync(once, workflow_id="run")
    missing.clear()
    in_sync(engine).fork("run", new_id="new", checkpoint_id=checkpoint)
    assert engine.resume_sync(once, workflow_id="new").status is Status.COMPLETED
    in_sync(engine).rollback("run", "pay")
    assert engine.resume_sync(once, workflow_id="run").status is Status.COMPLETED
    assert ledger == ["book pay", "undo pay", *["book pay", "book car"] * 2]


# An effect is undone only by the run that made it.


def test_a_failed_fork_undoes_only_what_it_did(reopen: Reopen) -> None:
    engine = start(reopen)
    take_new()
    in_sync(engine).fork("run", new_id="new", from_step="car")
    missing.add("train")
    engine = WorkflowEngine(reopen())
    assert engine.resume_sync(trip, workflow_id="new").undone == ("car",)
    assert take_new() == ["book car", "undo car"]
    in_sync(engine).fork("new", new_id="newer")  # a fork of a fork: nothing of either source is its own
    assert engine.resume_sync(trip, workflow_id="newer").undone == ("car",)
    assert take_new() == ["book car", "undo car"]
    missing.clear()
    assert engine.resume_sync(trip, workflow_id="newer").status is Status.COMPLETED
    assert engine.resume_sync(trip, workflow_id="run").status is Status.COMPLETED
    assert take_new() == ["book car", "book train"], "the effects of the first run still stand, and both runs use them"


def test_a_cancelled_fork_undoes_only_what_it_did(reopen: Reopen) -> None:
    engine = WorkflowEngine(reopen())
    engine.run_sync(trip, workflow_id="run")
    in_sync(engine).fork("run", new_id="all")
    in_sync(engine).fork("run", new_id="some", from_step="hotel")
    in_sync(engine).fork("run", new_id="left", from_step="hotel")
    for new in ("some", "left"):
        engine.resume_sync(trip, workflow_id=new)
    take_new()
    assert in_sync(engine).cancel("all", workflow=trip).undone == ()
    assert in_sync(engine).cancel("some", workflow=trip).undone == ("hotel",)
    assert in_sync(engine).cancel("left", rolls_back=False).undone == ()
    assert take_new() == ["undo hotel"]
    assert in_sync(engine).cancel("run", workflow=trip).undone == ("hotel", "flight"), "its effects stayed its own"


def test_a_fork_that_goes_back_does_not_own_what_it_takes_again(reopen: Reopen) -> None:
    engine = start(reopen)
    in_sync(engine).fork("run", new_id="new", from_step="car")
    engine.resume_sync(trip, workflow_id="new")
    in_sync(engine).rollback("new", "@forked")
    take_new()
    missing.add("train")
    assert engine.resume_sync(trip, workflow_id="new").undone == ("car",)
    assert take_new() == ["book car", "undo car"]


def test_an_edited_output_is_no_effect_of_the_fork(reopen: Reopen) -> None:
    engine = start(reopen)
    in_sync(engine).fork("run", new_id="new", outputs={"hotel": "tent"}, workflow=trip)
    engine.resume_sync(trip, workflow_id="new")
    take_new()
    assert in_sync(engine).cancel("new", workflow=trip).undone == ()


def test_an_edited_step_of_the_source_does_not_hinder_the_end_of_a_fork(reopen: Reopen) -> None:
    """Code that no longer yields a step of the source cannot undo it, and need not."""

    @workflow(name="trip")
    def shorter() -> Generator[Any, Any, None]:
        yield step("agreed").wait("agreed")

    engine = WorkflowEngine(reopen())
    engine.run_sync(trip, workflow_id="run")
    in_sync(engine).fork("run", new_id="new")
    assert in_sync(engine).cancel("new", workflow=shorter).not_undone == ()


# Composites.


@workflow
def side(name: str) -> Generator[Any, Any, str]:
    hold = yield step("hold").python(book, name).rollback(undo).checkpoint()
    yield step("go").wait(f"go {name}")
    return hold


@workflow
def race() -> Generator[Any, Any, Any]:
    yield parallel(step("a").workflow(side, name="a"), step("b").workflow(side, name="b"), name="race", min_success=1)
    return (yield step("end").python(book, "end"))


def start_race(reopen: Reopen) -> WorkflowEngine:
    engine = WorkflowEngine(reopen())
    engine.run_sync(race, workflow_id="run")
    assert sorted(take_new()) == ["book a", "book b"]
    return engine


def end_race(engine: WorkflowEngine, run: str, winner: str) -> list[str]:
    in_sync(engine).signal(run, f"go {winner}")
    assert engine.resume_sync(race, workflow_id=run).status is Status.COMPLETED
    return take_new()


def test_a_race_forked_before_its_decision_holds_again_what_the_loser_gave_back(reopen: Reopen) -> None:
    engine = start_race(reopen)
    before = asyncio.run(engine.store.load_latest("run")).sequence  # type: ignore[union-attr]
    assert end_race(engine, "run", "a") == ["undo b", "book end"]
    made = in_sync(engine).fork("run", new_id="new", checkpoint_id=str(before))
    assert made.undone == ("race/[b]/hold",)
    engine.resume_sync(race, workflow_id="new")
    assert "book b" in take_new()
    assert "undo b" not in end_race(engine, "new", "b")


def test_the_end_of_a_race_is_taken_over_with_what_its_loser_gave_back(reopen: Reopen) -> None:
    engine = start_race(reopen)
    end_race(engine, "run", "a")
    made = in_sync(engine).fork("run", new_id="new", from_step="end")
    assert "race/[b]/hold@rollback" in paths(reopen(), "new")
    assert made.undone == ()
    engine.resume_sync(race, workflow_id="new")
    assert take_new() == ["book end"]


def test_a_race_forked_while_it_runs_leaves_the_holds_to_its_source(reopen: Reopen) -> None:
    engine = start_race(reopen)
    in_sync(engine).fork("run", new_id="new")
    assert end_race(engine, "new", "b") == ["book end"]
    assert end_race(engine, "run", "a") == ["undo b", "book end"]


def test_members_of_a_map_stay_those_of_the_source() -> None:
    @workflow
    def hold_all() -> Generator[Any, Any, None]:
        yield step("rooms").map(book, ["x", "y", "z"], concurrency=1).rollback(undo)
        yield step("car").python(book, "car")

    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(hold_all, workflow_id="run")
    in_sync(engine).fork("run", new_id="new", from_step="rooms/[1]")
    take_new()
    missing.add("car")
    engine.resume_sync(hold_all, workflow_id="new")
    assert take_new() == ["book y", "undo y"]


@pytest.mark.parametrize("place", ["both", "both/hotel"])
def test_a_child_workflow_done_in_part_by_the_source_is_not_undone_as_a_whole(place: str) -> None:
    @workflow
    def pair() -> Generator[Any, Any, list[str]]:
        flight = yield step("flight").python(book, "flight").checkpoint()
        return [flight, (yield step("hotel").python(book, "hotel").rollback(undo).checkpoint())]

    @workflow
    def tour() -> Generator[Any, Any, None]:
        yield step("both").workflow(pair).rollback(undo_both).checkpoint()
        yield step("car").python(book, "car")

    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(tour, workflow_id="run")
    in_sync(engine).fork("run", new_id="new", from_step=place)
    take_new()
    missing.add("car")
    engine.resume_sync(tour, workflow_id="new")
    whole = ["book flight", "book hotel", "undo flight and hotel", "undo hotel"]
    assert take_new() == (whole if place == "both" else ["book hotel", "undo hotel"])
