"""One long step with partial state: it draws a picture row by row, and a kill loses one row.

    flowckpt run examples/mandelbrot_rows.py -i height=400
    (kill -9 it, as often as you like)
    flowckpt resume --last

The rows are in a file of the program's own; what the step saves is only how many of them are good.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

from flowckpt import current_step, now, step, workflow
from flowckpt.evidence import file_sha256

WIDTH = 64


def row_of(number: int, height: int, depth: int) -> bytes:
    """Return one row of the picture, one byte per point."""
    row = bytearray()
    for column in range(WIDTH):
        c = complex(-2.2 + 3.2 * column / WIDTH, -1.2 + 2.4 * number / height)
        z, steps = 0j, 0
        while abs(z) <= 2 and steps < depth:
            z, steps = z * z + c, steps + 1
        row.append(255 * steps // depth)
    return bytes(row)


def draw(target: Path, height: int, depth: int) -> int:
    """Draw the picture; continue after the rows that an earlier attempt has finished."""
    inside = current_step()
    done: int = inside.load(0)
    with target.open("r+b" if done else "wb") as file:
        file.truncate(done * WIDTH)  # a row after the last save may be half written
        file.seek(done * WIDTH)
        for number in range(done, height):
            file.write(row_of(number, height, depth))
            file.flush()
            inside.save(number + 1)
            inside.progress(number + 1, height, "rows")
    return height


def digest_of(target: Path) -> str:
    """Return the digest of a picture."""
    return hashlib.sha256(target.read_bytes()).hexdigest()


@workflow("mandelbrot")
def mandelbrot(target: Path = Path("rows.gray"), height: int = 200, depth: int = 200) -> Generator[Any, Any, str]:
    """Draw a picture, and return its digest."""
    yield now("begun_at")
    made = step("draw").python(draw, target, height, depth)
    yield made.evidence(file_sha256(str(target))).checkpoint()
    return (yield from step("digest").python(digest_of, target).checkpoint())


if __name__ == "__main__":
    from flowckpt import run_sync

    print(run_sync(mandelbrot).output)
