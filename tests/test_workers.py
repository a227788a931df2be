"""Work on threads for event loops: done to its end, answered in the loop, and by the process's own threads after a fork."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from flowckpt.core.system import blocking
from flowckpt.core.system.blocking import APART, SyncGroup, Workers, run_in_place
from flowckpt.errors import CheckpointStorageError
from tests.stores.peers import error_of, in_fork

NAME = contextvars.ContextVar("NAME", default="none")


async def test_work_is_done_at_the_same_time_by_a_bounded_number_of_threads():
    workers, together = Workers(3), threading.Barrier(3)
    names = await asyncio.gather(
        *(workers.run(lambda: (together.wait(120), threading.get_ident())[1]) for _ in range(6))
    )
    assert len(set(names)) == 3
    assert threading.get_ident() not in names


async def test_answers_and_errors_come_back_with_the_context_of_the_caller():
    workers = Workers(2)
    NAME.set("of the caller")
    assert await workers.run(NAME.get) == "of the caller"
    with pytest.raises(ZeroDivisionError):
        await workers.run(lambda: 1 // 0)


async def test_work_whose_caller_was_cancelled_is_done_to_its_end():
    workers, begun, may_end, ended = Workers(1), threading.Event(), threading.Event(), threading.Event()

    def work():
        begun.set()
        may_end.wait(120)
        ended.set()

    task = asyncio.ensure_future(workers.run(work))
    await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    await asyncio.wait({task})
    may_end.set()
    assert await asyncio.to_thread(ended.wait, 60)
    assert await workers.run(lambda: "more") == "more"


def test_a_loop_that_has_ended_keeps_no_other_waiting():
    workers, may_end = Workers(1), threading.Event()

    async def leave():
        workers.run(lambda: may_end.wait(120))

    asyncio.run(leave())
    may_end.set()

    async def use():
        return await workers.run(lambda: "done")

    assert asyncio.run(use()) == "done"


def test_a_forked_child_has_threads_of_its_own():
    workers = Workers(1)

    async def use():
        assert await workers.run(lambda: "done") == "done"

    def in_child():
        thread = threading.Thread(target=asyncio.run, args=(use(),))
        thread.start()
        thread.join()

    asyncio.run(use())
    assert in_fork(lambda: error_of(in_child)) == "nothing"


def test_calls_are_made_in_parallel_and_each_failure_is_in_its_place():
    workers, together = Workers(3), threading.Barrier(3)

    def call(number):
        together.wait(120)
        if number % 2:
            raise ValueError(number)
        return number

    outcomes = workers.each([lambda number=number: call(number) for number in range(6)])
    assert [result for result, _ in outcomes] == [0, None, 2, None, 4, None]
    assert [error and error.args for _, error in outcomes] == [None, (1,), None, (3,), None, (5,)]
    assert workers.each([]) == []


def test_calls_are_made_by_their_thread_while_all_others_are_busy():
    workers, may_end = Workers(2), threading.Event()
    for _ in range(2):
        workers.start(lambda: may_end.wait(120))
    found = []
    assert workers.each([lambda: found.append(threading.get_ident())] * 3) == [(None, None)] * 3
    assert set(found) == {threading.get_ident()}
    may_end.set()


@pytest.fixture
def thread_limit(monkeypatch):
    """An event: while it is set, no further thread can be started."""
    reached, start = threading.Event(), threading.Thread.start

    def refuse(thread):
        if reached.is_set():
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return reached


async def test_work_for_which_no_thread_can_be_started_is_refused_and_later_work_is_done(thread_limit):
    workers = Workers(2)
    thread_limit.set()
    with pytest.raises(CheckpointStorageError, match="new thread"):
        workers.run(lambda: "lost")
    thread_limit.clear()
    assert await asyncio.wait_for(workers.run(lambda: "done"), 60) == "done"


async def test_one_thread_does_the_work_of_several_that_cannot_be_started(thread_limit):
    workers, may_end = Workers(3), threading.Event()
    first = workers.run(lambda: may_end.wait(120))
    thread_limit.set()
    others = [workers.run(lambda number=number: number) for number in range(3)]
    may_end.set()
    assert await asyncio.wait_for(asyncio.gather(first, *others), 60) == [True, 0, 1, 2]


def test_calls_are_all_made_before_the_answer_where_no_thread_can_be_started(thread_limit):
    thread_limit.set()
    assert Workers(3).each([lambda number=number: number for number in range(4)]) == [(n, None) for n in range(4)]


async def test_work_of_runs_continues_after_a_thread_could_not_be_started(monkeypatch, thread_limit):
    monkeypatch.setattr(blocking, "workers", Workers(3))
    group, done = SyncGroup(), []

    def saving(name):
        yield (lambda: done.append(name)), None
        return name

    thread_limit.set()
    with pytest.raises(CheckpointStorageError, match="new thread"):
        group.later("a", saving("refused"))
    thread_limit.clear()
    futures = [group.later(name, saving(name)) for name in "abc"]
    thread_limit.set()
    assert await asyncio.wait_for(asyncio.gather(*futures), 60) == ["a", "b", "c"]
    assert sorted(done) == ["a", "b", "c"]


class UnluckyName(str):
    """The name of a run for which there is no memory, once, when work for it is taken."""

    __slots__ = ("is_spent",)

    def __hash__(self) -> int:
        if not hasattr(self, "is_spent"):
            self.is_spent = True
            raise MemoryError
        return super().__hash__()


def waits_once(value, *, of=None):
    yield (lambda: None), of
    return value


async def test_work_that_meets_a_lack_of_memory_ends_with_it_and_later_work_is_done():
    group = SyncGroup()
    with pytest.raises(MemoryError):
        await asyncio.wait_for(group.later(UnluckyName("a"), waits_once(1)), 60)
    assert await asyncio.wait_for(group.later("a", waits_once(2)), 60) == 2


async def test_a_lack_of_memory_beside_other_work_loses_none_of_it():
    group, may_end = SyncGroup(), threading.Event()

    def held():
        yield (lambda: may_end.wait(60)), None
        return "held"

    first = group.later("first", held())
    others = [group.later(name, waits_once(name)) for name in (UnluckyName("a"), "b", "c")]
    may_end.set()
    found = await asyncio.wait_for(asyncio.gather(first, *others, return_exceptions=True), 60)
    assert not [each for each in found if not isinstance(each, MemoryError | str)]
    for name in ("first", "a", "b", "c"):
        assert await asyncio.wait_for(group.later(name, waits_once(name)), 60) == name


async def test_work_whose_long_wait_no_thread_can_take_ends_with_it_and_later_work_of_the_run_is_done(monkeypatch):
    class Full(Workers):
        def start(self, work, future=None):
            if getattr(work, "func", None) is not None and not refused:
                refused.append(work)
                raise CheckpointStorageError("no thread")
            super().start(work, future)

    refused = []
    monkeypatch.setattr(blocking, "workers", Full(3))
    group = SyncGroup()
    with pytest.raises(CheckpointStorageError, match="no thread"):
        await asyncio.wait_for(group.later("a", waits_once(1, of=APART)), 60)
    assert await asyncio.wait_for(group.later("a", waits_once(2, of=APART)), 60) == 2


@pytest.mark.parametrize("most", [1, 2, 16])
async def test_more_long_waits_than_threads_beside_short_ones_all_end(monkeypatch, most):
    monkeypatch.setattr(blocking, "workers", Workers(most))
    group = SyncGroup()

    def long(number):
        for _ in range(3):
            yield (lambda: blocking.workers.each([lambda: None] * 5)), APART
            yield (lambda: None), None
        return number

    futures = [group.later(f"run {n}", long(n) if n % 2 else waits_once(n)) for n in range(100)]
    assert await asyncio.wait_for(asyncio.gather(*futures), 120) == [*range(100)]


def test_work_run_in_place_receives_the_result_and_the_error_of_each_call():
    def work():
        first = yield (lambda: 1), None
        try:
            yield (lambda: 1 // 0), "shared"
        except ZeroDivisionError:
            second = yield (lambda: 2), None
            return first + second

    assert run_in_place(work()) == 3
    with pytest.raises(ZeroDivisionError):
        run_in_place(waits_for(lambda: 1 // 0))


def waits_for(call):
    yield call, None
