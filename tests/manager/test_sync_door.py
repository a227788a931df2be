"""One door for code that is not async, to any object."""

import asyncio
import gc
import os
import signal
import threading

import pytest

from flowckpt import CheckpointManager, FileCheckpointStore, MemoryCheckpointStore, in_sync
from flowckpt.core.system.blocking import may_block
from flowckpt.errors import CheckpointNotFoundError


class Odd:
    number = 7

    def __init__(self) -> None:
        self.seen = []
        self.inside = 0
        self.most_inside = 0

    async def double(self, number: int, *, times: int = 1) -> int:
        """Double it."""
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        await asyncio.sleep(0.002)
        self.inside -= 1
        return number * 2**times

    def plain(self, number: int) -> int:
        return number + 1

    async def where(self):
        return threading.get_ident(), may_block(), id(asyncio.get_running_loop())

    async def loop(self):
        return asyncio.get_running_loop()

    async def fail(self):
        raise LookupError("not here")

    async def __aenter__(self):
        self.seen.append("entered")
        return self

    async def __aexit__(self, *raised):
        self.seen.append(raised[0])


def test_async_methods_wait_and_everything_else_is_passed_on():
    door = in_sync(Odd())
    assert door.double(4, times=2) == 16
    assert door.plain(1) == 2
    assert door.number == 7
    assert door.double.__doc__ == "Double it."
    with pytest.raises(AttributeError, match="nothing"):
        door.nothing
    with pytest.raises(LookupError, match="not here"):
        door.fail()


def test_a_coroutine_can_be_waited_for_so_that_its_type_is_known():
    odd = Odd()
    assert in_sync(odd).wait_for(odd.double(3)) == 6


def test_all_calls_share_one_loop_and_run_in_the_calling_thread_where_they_may_block():
    door = in_sync(Odd())
    first, second = door.where(), door.where()
    assert first == second
    assert first[:2] == (threading.get_ident(), True)
    assert not may_block()
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_calls_from_several_threads_wait_for_one_another():
    odd, found = Odd(), []
    door = in_sync(odd)
    threads = [threading.Thread(target=lambda: found.append(door.double(1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [2] * 8
    assert (odd.most_inside, odd.inside) == (1, 0)


async def test_in_a_running_loop_the_door_is_open():
    odd, outer = Odd(), asyncio.get_running_loop()
    with in_sync(odd) as door:
        assert (door.double(1), door.wait_for(odd.double(2)), door.plain(1)) == (2, 4, 2)
    del door
    gc.collect()
    assert asyncio.get_running_loop() is outer


def test_with_it_the_object_is_entered_and_left_and_the_loop_closed():
    odd = Odd()
    with pytest.raises(KeyError), in_sync(odd) as door:
        loop = door.loop()
        assert not loop.is_closed()
        raise KeyError
    assert odd.seen == ["entered", KeyError]
    assert loop.is_closed()
    assert door.loop() is not loop  # a later call opens a new one


def test_a_door_that_is_dropped_closes_its_loop_without_a_word():
    loops = [in_sync(Odd()).loop() for _ in range(20)]
    gc.collect()
    assert [loop.is_closed() for loop in loops] == [True] * 20


async def test_a_door_can_be_dropped_inside_another_loop():
    doors, loops = [in_sync(Odd())], []
    thread = threading.Thread(target=lambda: loops.append(doors[0].loop()))
    thread.start()
    thread.join()
    (loop,) = loops
    assert not loop.is_closed()
    doors.clear()
    gc.collect()
    assert loop.is_closed()
    assert asyncio.get_running_loop() is not loop


def test_ctrl_c_stops_the_call_and_not_the_door():
    class Patient:
        async def wait(self):
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)

        async def answer(self):
            return 42

    door = in_sync(Patient())
    with pytest.raises(KeyboardInterrupt):
        door.wait()
    assert door.answer() == 42


@pytest.mark.parametrize("make", [lambda path: MemoryCheckpointStore(), FileCheckpointStore], ids=["memory", "file"])
def test_a_manager_works_in_plain_code(make, tmp_path):
    store = make(tmp_path / "store")
    with in_sync(CheckpointManager(store)) as manager:
        begun = manager.begin_step("task", "train", {"w": 1})
        found = manager.commit_step(begun, None, snapshot={"w": 2})
        assert manager.get_checkpoint(found).snapshot == {"w": 2}
        with pytest.raises(CheckpointNotFoundError):
            manager.get_checkpoint("task@nothing")
    assert in_sync(store).owner("task") is None
    assert in_sync(CheckpointManager(store)).restore("task").snapshot == {"w": 2}
