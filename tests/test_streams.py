"""Streams of files: every byte in order, on the disk when a write returns, and a loop that stays live."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowckpt.core.system import streams


async def collected(chunks):
    return [chunk async for chunk in chunks]


async def given_as_chunks(*chunks):
    for chunk in chunks:
        yield chunk


async def test_a_file_comes_in_chunks_of_the_asked_size_from_the_asked_offset(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"0123456789")
    assert await collected(streams.read_chunks(file, size=4)) == [b"0123", b"4567", b"89"]
    assert await collected(streams.read_chunks(file, size=4, offset=5)) == [b"5678", b"9"]
    assert await collected(streams.read_chunks(file, offset=10)) == []


async def test_written_chunks_are_synced_before_the_call_returns(tmp_path, monkeypatch):
    synced = []
    sync = os.fsync

    def watched(descriptor):
        synced.append(os.fstat(descriptor).st_size)
        sync(descriptor)

    monkeypatch.setattr(streams.os, "fsync", watched)
    file = tmp_path / "file"
    assert await streams.write_chunks(file, given_as_chunks(b"ab", b"", b"cde")) == 5
    assert (file.read_bytes(), synced) == (b"abcde", [5])


async def test_a_file_is_overwritten_or_appended_to_only_on_request(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"old")
    with pytest.raises(FileExistsError):
        await streams.write_chunks(file, given_as_chunks(b"new"))
    assert file.read_bytes() == b"old"
    await streams.write_chunks(file, given_as_chunks(b"er"), mode="ab")
    assert file.read_bytes() == b"older"
    await streams.write_chunks(file, given_as_chunks(b"new"), mode="wb")
    assert file.read_bytes() == b"new"


async def test_a_copy_has_the_same_bytes(tmp_path):
    content = os.urandom(100_003)
    (tmp_path / "source").write_bytes(content)
    assert await streams.copy(tmp_path / "source", tmp_path / "target", size=4096) == len(content)
    assert (tmp_path / "target").read_bytes() == content


async def test_a_descriptor_stays_open(tmp_path):
    (tmp_path / "source").write_bytes(b"content")
    source = os.open(tmp_path / "source", os.O_RDONLY)
    target = os.open(tmp_path / "target", os.O_WRONLY | os.O_CREAT)
    try:
        assert await streams.write_chunks(target, streams.read_chunks(source), mode="wb") == 7
        assert os.fstat(source).st_size == os.fstat(target).st_size == 7
    finally:
        os.close(source)
        os.close(target)


async def test_a_reader_that_ends_early_closes_the_file(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    before = len(os.listdir("/proc/self/fd"))
    async with aclosing(streams.read_chunks(file, size=10)) as chunks:
        async for _ in chunks:
            break
    assert len(os.listdir("/proc/self/fd")) == before


@given(st.lists(st.binary(max_size=5), max_size=8), st.binary(max_size=5).map(lambda end: end.replace(b"\n", b"")))
def test_a_tail_is_the_whole_lines_whatever_the_size_of_the_chunks(tmp_path_factory, lines, unfinished):
    file = tmp_path_factory.mktemp("tail") / "log"
    whole = b"".join(line + b"\n" for line in lines)
    file.write_bytes(whole + unfinished)
    for size in (1, 3, 100):
        found = asyncio.run(collected(streams.tail(file, size=size)))
        assert b"".join(found) == whole
        assert all(each.endswith(b"\n") for each in found)


async def test_a_tail_goes_on_where_the_last_one_ended(tmp_path):
    file = tmp_path / "log"
    file.write_bytes(b"one\ntw")
    first = b"".join(await collected(streams.tail(file)))
    with file.open("ab") as log:
        log.write(b"o\nthree\n")
    second = b"".join(await collected(streams.tail(file, offset=len(first))))
    assert (first, second) == (b"one\n", b"two\nthree\n")


async def test_the_loop_stays_live_while_a_pipe_has_nothing_to_read():
    reading, writing = os.pipe()
    chunks = asyncio.ensure_future(collected(streams.read_chunks(reading)))
    await asyncio.sleep(0.01)  # the loop turns, though the read waits
    assert not chunks.done()
    os.write(writing, b"at last")
    os.close(writing)
    assert await chunks == [b"at last"]
    os.close(reading)


def test_neither_the_package_nor_its_engine_loads_aiofiles():
    program = (
        "import sys, flowckpt; flowckpt.WorkflowEngine, flowckpt.FileCheckpointStore; print('aiofiles' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
