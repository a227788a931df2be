"""A program whose one step is killed between two of its saves, and continues elsewhere."""

from __future__ import annotations

import os
import time

from flowckpt import current_step, step, workflow

COUNT = 30


def copy() -> list[int]:
    inside = current_step()
    began = inside.load(0)
    for page in range(began, COUNT):
        with open(os.environ["PROGRAM_LOG"], "a") as log:
            log.write(f"{page} {os.getpid()}\n")
        time.sleep(0.02)
        inside.save(page + 1)
        inside.progress(page + 1, COUNT)
    return [began, inside.load(-1), inside.attempt]


@workflow("pages")
def pages():
    return (yield step("copy").python(copy))
