"""Large files: every byte in order, there as a whole or not at all, and a loop that stays live."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowckpt import MemoryCheckpointStore
from flowckpt.core.system import streams
from flowckpt.maintenance import import_run


async def collected(file, **options):
    with file.open("rb") as opened:
        return [chunk async for chunk in streams.read_chunks(opened.fileno(), **options)]


async def test_a_file_comes_from_its_beginning_in_chunks_of_the_asked_size(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"0123456789")
    assert await collected(file, size=4) == [b"0123", b"4567", b"89"]
    with file.open("rb") as opened:
        assert opened.read(3) == b"012"
        async with aclosing(streams.read_chunks(opened.fileno(), size=4)) as chunks:
            assert await anext(chunks) == b"0123"
        os.fstat(opened.fileno())  # it is open still


@given(st.lists(st.binary(max_size=30)), st.booleans())
def test_a_written_file_has_all_parts_and_only_its_owner_may_read_it(tmp_path_factory, parts, is_compressed):
    file = tmp_path_factory.mktemp("whole") / "file"
    asyncio.run(streams.write_whole(file, parts, is_compressed=is_compressed))
    read = subprocess.run(["gzip", "-dc", file], capture_output=True, check=True).stdout if is_compressed else None
    assert (file.read_bytes() if read is None else read) == b"".join(parts)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [*file.parent.iterdir()] == [file]


async def test_what_has_the_place_of_a_file_is_durable_before(tmp_path, monkeypatch):
    done = []
    sync, replace = os.fsync, streams.Path.replace
    monkeypatch.setattr(streams.os, "fsync", lambda file: (done.append(os.fstat(file).st_size), sync(file)))
    monkeypatch.setattr(streams.Path, "replace", lambda *given: (done.append("replace"), replace(*given)))
    await streams.write_whole(tmp_path / "file", [b"ab", b"", b"cde"])
    assert done == [5, "replace", tmp_path.stat().st_size]


async def test_parts_that_fail_leave_the_earlier_file_and_nothing_else(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"old")

    def parts():
        yield b"x" * (2 << 20)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        await streams.write_whole(file, parts())
    assert (file.read_bytes(), [*tmp_path.iterdir()]) == (b"old", [file])


async def test_the_loop_stays_live_while_parts_are_made(tmp_path):
    asked = threading.Event()

    def parts():
        assert asked.wait(120)  # only the loop can say so
        yield b"at last"

    writing = asyncio.ensure_future(streams.write_whole(tmp_path / "file", parts()))
    asyncio.get_running_loop().call_later(0, asked.set)
    await writing
    assert (tmp_path / "file").read_bytes() == b"at last"


async def test_a_write_that_is_cancelled_leaves_nothing(tmp_path):
    begun, end = threading.Event(), threading.Event()

    def parts():
        begun.set()
        assert end.wait(120)
        yield b"too late"

    writing = asyncio.ensure_future(streams.write_whole(tmp_path / "file", parts()))
    assert await asyncio.to_thread(begun.wait, 60)
    writing.cancel()
    end.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert [*tmp_path.iterdir()] == []


async def test_a_symbolic_link_is_refused_and_a_pipe_is_written_to(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(OSError, match="symbolic link"):
        await streams.write_whole(tmp_path / "link", [b"x"])
    os.mkfifo(tmp_path / "pipe")
    reading = asyncio.create_task(asyncio.to_thread((tmp_path / "pipe").read_bytes))
    await streams.write_whole(tmp_path / "pipe", [b"through", b" it"])
    assert await reading == b"through it"


def test_neither_the_package_nor_its_engine_loads_aiofiles():
    program = (
        "import sys, flowckpt; flowckpt.WorkflowEngine, flowckpt.FileCheckpointStore; print('aiofiles' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("has_writer", [False, True], ids=["no writer", "a silent writer"])
def test_an_import_that_waits_for_a_pipe_leaves_the_loop_free_and_ends_with_a_cancel(tmp_path, has_writer):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR) if has_writer else None

    async def main():
        importing = asyncio.create_task(import_run(MemoryCheckpointStore(), pipe))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not importing.done()
        importing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await importing

    try:
        asyncio.run(main())
    finally:
        os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK) if writer is None else writer)
