"""Work on threads for event loops: done to its end, answered in the loop, and by the process's own threads after a fork."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from flowckpt.core.system.blocking import Workers
from tests.stores.peers import error_of, in_fork

NAME = contextvars.ContextVar("NAME", default="none")


async def test_work_is_done_at_the_same_time_by_a_bounded_number_of_threads():
    workers, together = Workers(3), threading.Barrier(3)
    names = await asyncio.gather(
        *(workers.run(lambda: (together.wait(60), threading.get_ident())[1]) for _ in range(6))
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
        may_end.wait(60)
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
        workers.run(lambda: may_end.wait(60))

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
