"""When a failed try is followed by another: predicates, a deadline, and a budget of the whole run."""

from __future__ import annotations

import csv
import functools
import io
import signal
import weakref
from collections.abc import Callable, Generator
from typing import Any

import pytest

from flowckpt import MemoryCheckpointStore, RunOptions, WorkflowEngine, current_step, in_sync, parallel, step, workflow
from flowckpt.core.dsl import Workflow
from flowckpt.errors import FanOutFailedError, InputError, StepDefinitionError, StepFailedError
from flowckpt.execution.interrupts import RunInterrupted
from flowckpt.testing import FakeClock
from tests.executors.far_steps import HttpError, is_overload

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    calls.clear()


def get(*statuses: int) -> int:
    calls.append(current_step().max_tries)
    status = statuses[len(calls) - 1]
    if status != 200:
        raise HttpError(status)
    return len(calls)


def flow_of(made: Any) -> Workflow[..., Any]:
    @workflow
    def flow() -> Generator[Any, Any, Any]:
        return (yield made)

    return flow


def ended(made: Any, **given: Any) -> Any:
    engine = WorkflowEngine(MemoryCheckpointStore(), clock=given.pop("clock", FakeClock()))
    return engine.run_sync(flow_of(made), **given)


def failure(made: Any, **given: Any) -> StepFailedError:
    error = ended(made, **given).error
    assert isinstance(error, StepFailedError)
    return error


# --- predicates ------------------------------------------------------------------------------------------------------


def test_a_function_says_which_errors_are_worth_another_try() -> None:
    made = step("get").python(get, 503, 503, 200).retry(5, on=is_overload)
    assert ended(made).output == 3
    assert calls == [5, 5, 5]


def test_another_error_of_the_same_class_is_not_tried_again() -> None:
    assert failure(step("get").python(get, 503, 404, 200).retry(5, on=is_overload)).tries == 2


def test_one_of_several_is_enough() -> None:
    made = (
        step("get").python(get, 503, 404, 200).retry(5, on=(KeyError, is_overload, lambda error: "404" in str(error)))
    )
    assert ended(made).output == 3


def breaks(error: BaseException) -> bool:
    raise LookupError(f"no rule for {error}")


def test_a_function_that_raises_means_no_and_the_record_says_so() -> None:
    error = failure(step("get").python(get, 503, 200).retry(5, on=breaks))
    assert (error.tries, error.error_type.rpartition(".")[2]) == (1, "HttpError")
    assert "breaks of .retry(on=…) raised LookupError: no rule for status 503; not retrying" in error.traceback
    assert ended(step("get").python(get, 503, 200).retry(5, on=(breaks, HttpError))).status == "completed"


def says_one(error: BaseException) -> Any:
    return 1


def test_an_answer_that_is_neither_true_nor_false_means_no() -> None:
    error = failure(step("get").python(get, 503, 200).retry(5, on=says_one))
    assert "returned 1 instead of True or False" in error.traceback


async def asks(error: BaseException) -> bool:
    return True


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"on": asks}, "async"),
        ({"on": ()}, "no error to retry"),
        ({"on": 5}, "exception classes and functions"),
        ({"on": (KeyError, "OSError")}, "exception classes and functions"),
        ({"on": KeyboardInterrupt}, "exception classes and functions"),
        ({"deadline": 0}, "deadline=0"),
        ({"deadline": float("nan")}, "deadline=nan"),
        ({"deadline": True}, "deadline=True"),
    ],
    ids=["async", "nothing", "a number", "a text", "no Exception", "no time", "nan", "bool"],
)
def test_what_makes_no_sense_is_refused_when_the_step_is_written(given: dict[str, Any], said: str) -> None:
    with pytest.raises(StepDefinitionError, match=said):
        step("s").retry(3, **given)


# --- the deadline ----------------------------------------------------------------------------------------------------


def takes(clock: FakeClock, seconds: float) -> None:
    calls.append(seconds)
    clock.advance(seconds)
    raise OSError("down")


DEADLINES: dict[str, tuple[float, float, float, int]] = {  # each try takes, backoff, deadline, tries
    "no wait goes beyond it": (0, 1, 6.9, 3),  # begins at 0, 1, 3; the next one would begin at 7
    "a try may begin when it is over to the very moment": (0, 1, 7, 4),
    "the tries themselves count": (2, 1, 7, 3),  # 0-2, 3-5, then 7
    "the first try always runs": (10, 1, 0.5, 1),
    "without waits": (1, 0, 3.5, 4),  # at 0, 1, 2, 3; not at 4
}


@pytest.mark.parametrize(("seconds", "backoff", "deadline", "tries"), DEADLINES.values(), ids=DEADLINES)
def test_no_further_try_begins_behind_the_deadline(seconds: float, backoff: float, deadline: float, tries: int) -> None:
    clock = FakeClock()
    made = step("s").python(takes, clock, seconds).retry(9, backoff=backoff, deadline=deadline)
    error = failure(made, clock=clock)
    assert error.tries == len(calls) == tries
    assert f"its deadline of {deadline:g} s" in error.traceback
    assert sum(clock.slept) <= deadline


class SleepyClock(FakeClock):
    """The machine is put to sleep while a wait continues."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        self.advance(3600)


def test_a_wait_that_took_longer_than_asked_for_is_not_followed_by_a_try() -> None:
    clock = SleepyClock()
    assert failure(step("s").python(takes, clock, 0).retry(9, backoff=1, deadline=60), clock=clock).tries == 1


# --- the budget ------------------------------------------------------------------------------------------------------


def down(what: str) -> None:
    calls.append(what)
    raise OSError("down")


@workflow
def three() -> Generator[Any, Any, list[int]]:
    tries = []
    for name in "abc":
        try:
            yield step(name).python(down, name).retry(3)
        except StepFailedError as error:
            tries.append(error.tries)
            if "the run's 3 retries are used up" in error.traceback:
                tries.append(0)
    return tries


def test_all_steps_of_a_run_share_the_budget() -> None:
    engine = WorkflowEngine(MemoryCheckpointStore())
    assert engine.run_sync(three, options=RunOptions(retry_budget=3)).output == [3, 2, 0, 1, 0]
    assert engine.run_sync(three).output == [3, 3, 3]


def test_the_engine_has_a_budget_for_runs_that_have_none() -> None:
    engine = WorkflowEngine(MemoryCheckpointStore(), retry_budget=3)
    assert engine.run_sync(three).output == [3, 2, 0, 1, 0]
    assert engine.run_sync(three, options=RunOptions(retry_budget=9)).output == [3, 3, 3]


def test_a_budget_of_none_at_all_is_one_try_each() -> None:
    engine = WorkflowEngine(MemoryCheckpointStore(), retry_budget=0)
    result = engine.run_sync(flow_of(step("a").python(down, "a").retry(3)))
    assert isinstance(result.error, StepFailedError)
    assert result.error.tries == 1


def test_members_beside_each_other_share_it_too() -> None:
    made = step("m").map(down, [*"abcd"], concurrency=4, min_success=0).retry(9)
    ended(made, options=RunOptions(retry_budget=5))
    assert len(calls) == 4 + 5


def test_what_earlier_attempts_used_counts_until_a_resume_is_given_a_fresh_budget() -> None:
    flow = flow_of(step("a").python(down, "a").retry(9))
    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(flow, workflow_id="run", options=RunOptions(retry_budget=3))
    assert len(calls) == 4
    engine.resume_sync(flow, workflow_id="run")
    assert len(calls) == 5
    engine.resume_sync(flow, workflow_id="run", options=RunOptions(retry_budget=2))
    assert len(calls) == 8
    engine.resume_sync(flow, workflow_id="run")
    assert len(calls) == 9


def test_a_budget_that_is_not_used_up_is_what_is_left_to_a_resume() -> None:
    flow = flow_of(step("a").python(down, "a").retry(2))
    engine = WorkflowEngine(MemoryCheckpointStore(), retry_budget=3)
    engine.run_sync(flow, workflow_id="run")
    assert calls == ["a", "a"]
    engine.resume_sync(flow, workflow_id="run", options=RunOptions(tags={}))
    assert calls == ["a"] * 4
    engine.resume_sync(flow, workflow_id="run")
    engine.resume_sync(flow, workflow_id="run")
    assert calls == ["a"] * 7


def test_a_fork_is_a_new_run_with_the_whole_budget() -> None:
    flow = flow_of(step("a").python(down, "a").retry(9))
    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(flow, workflow_id="run", options=RunOptions(retry_budget=2))
    in_sync(engine).fork("run", new_id="fork", workflow=flow)
    calls.clear()
    engine.resume_sync(flow, workflow_id="fork")
    assert len(calls) == 3


@pytest.mark.parametrize("value", [-1, 1.5, True, "3"], ids=str)
@pytest.mark.parametrize("name", ["retry_budget", "max_crashes"])
def test_a_limit_that_is_no_number_is_refused(name: str, value: Any) -> None:
    made: list[Callable[..., Any]] = [RunOptions, lambda **given: WorkflowEngine(MemoryCheckpointStore(), **given)]
    for make in made:
        with pytest.raises(InputError, match=name):
            make(**{name: value})


# --- a stop while a try fails ----------------------------------------------------------------------------------------


async def flaky(needed: int) -> int:
    """Fail in the first tries; in the very first one, the process is asked to stop."""
    calls.append(needed)
    if calls == ["booked", needed]:
        signal.raise_signal(signal.SIGTERM)
    if current_step().tries < needed:
        raise ConnectionError(f"{needed}")
    return needed


@workflow
def rooms(needed: int, in_group: bool) -> Generator[Any, Any, str]:
    yield step("book").python(calls.append, "booked").rollback(lambda _: calls.append("undone")).checkpoint()
    made = step("flaky").python(flaky, needed).retry(3)
    try:
        yield parallel(made, step("b").python(abs, -1)) if in_group else made
    except (StepFailedError, FanOutFailedError):
        return "gave up"
    return "done"


@pytest.mark.parametrize("in_group", [False, True])
@pytest.mark.parametrize(("needed", "end"), [(2, "done"), (4, "gave up")])
def test_a_stop_while_a_try_fails_leaves_the_other_tries_to_the_resume(needed: int, end: str, in_group: bool) -> None:
    engine = WorkflowEngine(MemoryCheckpointStore())
    with pytest.raises(RunInterrupted) as stop:
        engine.run_sync(rooms, workflow_id="run", needed=needed, in_group=in_group)
    assert (stop.value.result.status, calls) == ("suspended", ["booked", needed])
    assert engine.resume_sync(rooms, workflow_id="run").output == end
    assert calls == ["booked", *[needed] * (1 + min(needed, 3))]


class Lines:
    def __init__(self):
        self.rest = iter(["a", "b"])

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.rest)


class Consumer(Lines):
    def commit(self):
        """A client: its next message is not the rest of something."""


class Output(io.StringIO):
    def readable(self):
        return False


class Port(io.RawIOBase):
    """A device: what it gives next is not the rest of something."""

    def readable(self):
        return True

    def writable(self):
        return True

    def readline(self, size=-1):
        return b"1"

    def tell(self):
        raise NotImplementedError("no position")


class Broken(dict):
    def values(self):
        raise LookupError("not loaded")


USED = {
    "in a dictionary": lambda: {"rows": [iter(["a", "b"])]},
    "of the csv module": lambda: csv.reader(["a", "b"]),
    "of the program": Lines,
    "a file": lambda: io.StringIO("a\nb\n"),
    "a file that the step closes": lambda: io.StringIO("a\nb\n"),
    "a client": Consumer,
    "a port": Port,
    "a proxy": lambda: weakref.proxy(KEPT),
    "a broken mapping": lambda: Broken(a=1),
    "a file for writing": Output,
}


KEPT = Consumer()
RETRIED = {"a client", "a file for writing", "a port", "a proxy", "a broken mapping"}


@pytest.mark.parametrize("partly", [True, False])
@pytest.mark.parametrize("kind", USED)
def test_another_try_never_gets_only_the_rest_of_an_iterator(kind, partly):
    failures = [ConnectionError("once")]

    def read(rows):
        rows = rows["rows"][0] if type(rows) is dict else rows
        rows = iter(()) if kind in {"a file for writing", "a broken mapping", "a proxy"} else rows
        got = [] if kind in RETRIED else [str(next(rows))] if partly else [str(each) for each in rows]
        if kind == "a file that the step closes":
            rows.close()
        if failures:
            raise failures.pop()
        return got

    @workflow("reading")
    def reading(is_partial: bool):
        value = USED[kind]()
        made = step("read").python(functools.partial(read, value)) if is_partial else step("read").python(read, value)
        return (yield made.retry(3))

    for is_partial in (False, True):
        failures[:] = []
        clean = WorkflowEngine(MemoryCheckpointStore()).run_sync(reading, is_partial=is_partial)
        failures[:] = [ConnectionError("once")]
        again = WorkflowEngine(MemoryCheckpointStore()).run_sync(reading, is_partial=is_partial)
        if kind in RETRIED:
            assert again.status == "completed", again.error
        else:
            assert clean.status == "completed" and again.status == "failed"
            assert "is an iterator, and the try has used up a part of it. Pass a list" in again.failure.traceback
