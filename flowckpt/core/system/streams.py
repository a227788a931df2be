"""Files read, written and followed while the event loop stays live: by aiofiles, in large chunks.

Each call of aiofiles is a hop to a thread, 50 to 110 µs: nothing beside a chunk of a megabyte, and a thousand times the
price of a line. So nothing here reads lines one by one, and saves of checkpoints, which are small, do not come here.

A file is given by its path, or by a descriptor, which stays open. An `async for` that may end early belongs into
`contextlib.aclosing`, or the file is closed only by the garbage collector.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator
from typing import Literal

import aiofiles

CHUNK = 1 << 20

File = str | os.PathLike[str] | int


async def read_chunks(file: File, *, size: int = CHUNK, offset: int = 0) -> AsyncIterator[bytes]:
    """Yield the content of a file in chunks of at most `size` bytes, from an offset to its end."""
    async with aiofiles.open(file, "rb", closefd=not isinstance(file, int)) as stream:
        if offset:
            await stream.seek(offset)
        while chunk := await stream.read(size):
            yield chunk


async def write_chunks(file: File, chunks: AsyncIterable[bytes], *, mode: Literal["xb", "wb", "ab"] = "xb") -> int:
    """Write chunks to a file and return how many bytes they were; all of them are on the disk by then.

    Chunks should be large: each is a hop to a thread. A file that was cut short by an error or a cancel stays as it is;
    write under a temporary name and rename it if a reader could mistake it for a whole one.
    """
    written = 0
    async with aiofiles.open(file, mode, closefd=not isinstance(file, int)) as stream:
        async for chunk in chunks:
            written += await stream.write(chunk)
        await stream.flush()
        await asyncio.to_thread(os.fsync, stream.fileno())
    return written


async def copy(source: File, target: File, *, size: int = CHUNK) -> int:
    """Copy a file to a new one, chunk by chunk, and return its size; the copy is on the disk by then."""
    return await write_chunks(target, read_chunks(source, size=size))


async def tail(file: File, *, offset: int = 0, size: int = CHUNK) -> AsyncIterator[bytes]:
    """Yield the whole lines after an offset, many at a time, up to the present end of the file.

    A last line without its end is left for the next call, whose offset is this one's plus the lengths of what came.
    """
    rest: list[bytes] = []
    async for chunk in read_chunks(file, size=size, offset=offset):
        end = chunk.rfind(b"\n") + 1
        if end:
            yield b"".join((*rest, chunk[:end]))
            rest = []
        rest.append(chunk[end:])
