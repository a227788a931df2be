"""A run that waits and crashes, at any save and in any combination, ends as an uninterrupted one does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from outside import Saves, to_its_end

from flowckpt import MemoryCheckpointStore, current_step, parallel, step, workflow
from flowckpt.errors import StepFailedError, StepTimeoutError

effects: list[str] = []


def note(what: str) -> str:
    effects.append(what)
    return what


def fails_before(tries: int) -> str:
    if current_step().tries < tries:
        raise OSError("not yet")
    return note(f"at try {tries}")


@workflow
def in_a_row() -> Generator[Any, Any, list[Any]]:
    found = [(yield step("one").python(note, "one").checkpoint())]
    found.append((yield step("nap").sleep(3600)))
    found.append((yield step("go").wait("go")))
    found.append((yield step("two").python(note, "two")))
    found.append((yield step("patient").python(fails_before, 3).retry(5, backoff=7200)))
    found.append((yield step("go").wait("go")))
    approval = yield from step("review").approval()
    found.append(approval.by)
    try:
        yield step("never").sleep(7200)
        found.append((yield step("late").wait("late", timeout=0)))
    except StepFailedError as error:
        found.append(error.failed_with(StepTimeoutError))
    return found


@workflow
def child(item: int) -> Generator[Any, Any, list[Any]]:
    begun = yield step("begin").python(note, f"begin {item}").checkpoint()
    yield step("nap").sleep(600 * item)
    answer = yield step("go").wait(f"go-{item}")
    return [begun, answer, (yield step("end").python(note, f"end {item}"))]


@workflow
def in_a_map() -> Generator[Any, Any, Any]:
    found = yield step("items").map(child, [1, 2, 3], concurrency=2).checkpoint()
    return [found, (yield step("last").python(note, "last"))]


@workflow
def in_groups() -> Generator[Any, Any, Any]:
    answer, nothing, (inner, approval), work = yield parallel(
        step("go").wait("first").checkpoint(),
        step("nap").sleep(100_000),
        parallel(step("child").workflow(child, item=1), step("review").approval(), name="inner"),
        step("work").python(note, "work").checkpoint(),
    )
    return [answer, nothing, inner, approval.by, work]


def plain(results: Any) -> list[tuple[Any, ...]]:
    """What must be the same whenever it was run."""

    def output(result: Any) -> Any:
        return result.output.get("by") if isinstance(result.output, dict) and "by" in result.output else result.output

    told = [(each.path, each.step_type, each.success, repr(output(each))) for each in results]
    return sorted(told, key=lambda each: each[0])


def ended(reopen: Any, what: Any, saves: Saves, **inputs: Any) -> tuple[str, list[Any], Counter[str]]:
    effects.clear()
    result = to_its_end(reopen, what, saves, **inputs)
    assert result.status == "completed", result.error
    store = reopen()
    latest = asyncio.run(store.load_latest("run"))
    assert asyncio.run(store.signals("run")) == []
    assert "waits" not in latest.metadata
    signals = [each.signal for each in latest.step_results if each.signal]
    assert len(signals) == len(set(signals)) == saves.sent, "each is taken once, and none is lost"
    return repr(result.output), plain(latest.step_results), Counter(effects)


@pytest.mark.parametrize("what", [in_a_row, in_a_map, in_groups], ids=lambda w: w.name)
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_run_that_crashes_at_any_save_ends_as_an_uninterrupted_one(what, is_after):
    store = MemoryCheckpointStore()
    whole = Saves()
    output, history, done = ended(lambda: store, what, whole)
    assert whole.count >= 8
    for crash in range(1, whole.count + 1):
        store = MemoryCheckpointStore()

        def reopen(store: Any = store) -> Any:
            store.runs.owned.clear()
            return store

        again, results, repeated = ended(reopen, what, Saves(crash, is_after=is_after))
        assert (again, results) == (output, history), crash
        assert set(repeated) == set(done)
        assert (repeated - done).total() <= 3, "only what was not durable is done again"


@pytest.mark.parametrize("what", [in_a_row, in_a_map, in_groups], ids=lambda w: w.name)
def test_a_run_that_crashes_again_and_again_ends_as_an_uninterrupted_one(what, reopen):
    memory = MemoryCheckpointStore()
    output, history, _ = ended(lambda: memory, what, Saves())
    again, results, _ = ended(reopen, what, Saves(*range(3, 60, 3)))
    assert (again, results) == (output, history)


# --- any program -----------------------------------------------------------------------------------------------------

Program = list[Any]
leaves = st.one_of(
    st.just(["step"]),
    st.just(["saved"]),
    st.builds(lambda hours: ["sleep", hours], st.integers(0, 3)),
    st.just(["wait"]),
    st.just(["early"]),
    st.builds(lambda tries: ["retry", tries], st.integers(2, 3)),
    st.just(["race"]),
)
programs = st.recursive(
    st.lists(leaves, min_size=1, max_size=4),
    lambda inner: st.lists(
        st.one_of(
            leaves,
            st.builds(lambda body, size: ["map", size, body], inner, st.integers(1, 3)),
            st.builds(lambda *bodies: ["beside", *bodies], inner, inner),
        ),
        min_size=1,
        max_size=3,
    ),
    max_leaves=8,
)


@workflow
def runs(program: list[Any]) -> Generator[Any, Any, list[Any]]:
    """Run a program: what it says, one after another."""
    found: list[Any] = []
    for index, (kind, *rest) in enumerate(program):
        if kind in ("step", "saved"):
            made = step("work").python(note, f"{index}")
            found.append((yield made.checkpoint() if kind == "saved" else made))
        elif kind == "sleep":
            found.append((yield step("nap").sleep(rest[0] * 3600)))
        elif kind == "wait":
            found.append((yield step("wait").wait("go")))
        elif kind == "early":
            found.append((yield step("early").wait("never", timeout=60, default="nobody came")))
        elif kind == "retry":
            found.append((yield step("flaky").python(fails_before, rest[0]).retry(None, backoff=3600, factor=1)))
        elif kind == "race":
            racing = parallel(step("work").python(note, "won"), step("lost").wait("never"), min_success=1)
            won, lost = yield racing.checkpoint()
            found.append([won, str(lost)])
        elif kind == "map":
            found.append((yield step("map").map(runs, [rest[1]] * rest[0], concurrency=2)))
        else:
            bodies = [step("side").workflow(runs, program=body) for body in rest]
            found.append(list((yield parallel(*bodies))))
    return found


@settings(max_examples=40, deadline=None)
@given(program=programs, crashes=st.sets(st.integers(1, 40), max_size=6), is_after=st.booleans())
@example(program=[["step"]], crashes={1, 2, 3, 4, 5}, is_after=True)
def test_any_program_with_waits_ends_the_same_however_often_it_crashes(program, crashes, is_after):
    store = MemoryCheckpointStore()
    output, history, _ = ended(lambda: store, runs, Saves(), program=program)
    mortal = MemoryCheckpointStore()

    def reopen() -> Any:
        mortal.runs.owned.clear()
        return mortal

    again, results, _ = ended(reopen, runs, Saves(*crashes, is_after=is_after), program=program)
    assert (again, results) == (output, history)
