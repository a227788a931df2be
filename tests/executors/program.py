"""A program whose map is killed in the middle: `program.py STORE RUN LOG start|resume`, or by the command line."""

from __future__ import annotations

import os
import sys
import time

from flowckpt import FileCheckpointStore, WorkflowEngine, step, workflow

COUNT = 16


class RefusedError(Exception):
    pass


def work(number: int) -> int:
    with open(os.environ["PROGRAM_LOG"], "a") as log:
        log.write(f"{number} {os.getpid()}\n")
    time.sleep(0.06)
    return number * number


def refuse() -> None:
    raise RefusedError("no")


@workflow("squares")
def squares():
    found = yield step("squares").map(work, range(COUNT), concurrency=3).on("process").checkpoint()
    return sum(found)


@workflow("refused")
def refused():
    try:
        yield step("refuse").python(refuse).on("process").retry(2, on=RefusedError)
    except Exception as error:
        return [error.failed_with(RefusedError), error.error_type, error.tries]


if __name__ == "__main__":
    store, run, how = sys.argv[1:4]
    engine = WorkflowEngine(FileCheckpointStore(store), executors={"process": "process:2"})
    if how == "refused":
        print(engine.run_sync(refused, workflow_id=run).output)
    elif how == "start":
        print(engine.run_sync(squares, workflow_id=run).output)
    else:
        print(engine.resume_sync(squares, workflow_id=run).output)
