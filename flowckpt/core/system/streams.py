"""Large files, read and written by aiofiles in large chunks, without blocking the event loop.

Each call of aiofiles switches to a thread, which takes 50 to 110 µs: little for a chunk of a megabyte, but a thousand
times the cost of a line. So nothing here reads single lines, and the small saves of checkpoints do not use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import tempfile
import zlib
from collections.abc import AsyncGenerator, Iterable, Iterator
from pathlib import Path

import aiofiles

from flowckpt.core.system.blocking import run_on_daemon
from flowckpt.core.system.filesystem import sync_directory

CHUNK = 1 << 20
_GZIP_WBITS = 31
_OF_THE_SYSTEM = (Path("/dev"), Path("/dev/fd"))
"""The directories whose links belong to the system, such as /dev/stdout. In /dev/shm, any user may create links."""


async def read_chunks(file: int, *, size: int = CHUNK) -> AsyncGenerator[bytes]:
    """Yield an open file from its beginning in chunks of at most `size` bytes; the file stays open.

    Use `contextlib.aclosing` for a loop that may end early.
    """
    async with aiofiles.open(file, "rb", closefd=False) as stream:
        await stream.seek(0)
        while chunk := await stream.read(size):
            yield chunk


async def read_pipe(file: int, *, size: int = CHUNK) -> AsyncGenerator[bytes]:
    """Yield the content of a pipe or terminal, in non-empty chunks of at most `size` bytes.

    Waiting does not block the event loop, and a cancel (Ctrl-C) ends it at once.
    """
    while chunk := await run_on_daemon(functools.partial(os.read, file, size)):
        yield chunk


async def write_whole(file: Path, parts: Iterable[bytes], *, is_compressed: bool = False) -> None:
    """Write a file atomically: under a temporary name, renamed once its content is durable.

    Only its owner may read the file. Devices and pipes are written directly; a symbolic link is refused, because it may
    lead to another file. The parts are made on a thread, so making them may block.

    Args:
        file: the destination.
        parts: the content, in parts of any size.
        is_compressed: whether to compress the content with gzip; the same content gives the same bytes.

    Raises:
        OSError: the file cannot be written; an existing file is unchanged.
    """
    chunks = _in_chunks(_gzip(parts) if is_compressed else parts)
    if _is_device_or_pipe(file):
        async with aiofiles.open(file, "wb") as stream:
            while chunk := await asyncio.to_thread(next, chunks, b""):
                await stream.write(chunk)
        return
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)  # with mode 0600
    try:
        async with aiofiles.open(descriptor, "wb") as stream:
            while chunk := await asyncio.to_thread(next, chunks, b""):
                await stream.write(chunk)
            await stream.flush()
            await asyncio.to_thread(os.fsync, descriptor)
        await asyncio.to_thread(_replace, Path(name), file)
    except BaseException:
        with contextlib.suppress(OSError):
            _remove(name)
        raise


def _is_device_or_pipe(file: Path) -> bool:
    if file.is_symlink() and file.parent not in _OF_THE_SYSTEM:
        raise OSError(errno.ELOOP, "it is a symbolic link: name the file itself", str(file))
    return file.exists() and not file.is_file()


def _in_chunks(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Join parts to non-empty chunks of about `CHUNK` bytes."""
    held: list[bytes] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= CHUNK:
            yield b"".join(held)
            held, size = [], 0
    if size:
        yield b"".join(held)


def _gzip(parts: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(level=6, wbits=_GZIP_WBITS)  # its header contains neither a name nor a time
    for part in parts:
        yield packer.compress(part)
    yield packer.flush()


def _remove(name: str) -> None:
    Path(name).unlink()


def _replace(written: Path, file: Path) -> None:
    written.replace(file)
    sync_directory(file.parent)
