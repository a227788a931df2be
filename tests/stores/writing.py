"""A process that takes a run and saves to it again and again: `writing.py SPEC RUN LOG SEED kills|takeovers`.

Each line of the log is one append: attempt, sequence and id of a checkpoint that was acknowledged. With `kills` it goes
on until it is killed; with `takeovers` it steals the run whenever it has lost it, until a file beside the log says stop.
"""

from __future__ import annotations

import os
import random
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from flowckpt.core.records import CheckpointData, StepResult
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.errors import CheckpointStorageError, FencedError, RunLockedError
from flowckpt.stores import open_store


def main(spec: str, run: str, log: str, seed: str, mode: str) -> None:
    store, chance = open_store(spec), random.Random(seed)
    acknowledged = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    print("begun", flush=True)
    with blocking_allowed(True):
        while not Path(f"{log}.stop").exists():
            try:
                lease = store.runs.acquire(run, take_over=mode == "takeovers")
                steps = list(lease.latest.step_results) if lease.latest else []
                held, sequence = len(steps), lease.last_sequence
                while not Path(f"{log}.stop").exists():
                    sequence += 1
                    steps.append(StepResult(f"step-{len(steps) + 1}", output=f"{seed}: {lease.attempt}"))
                    name = f"{seed}-{lease.attempt}-{sequence}"
                    fields = {"saved_at": datetime.now(UTC), "sequence": sequence, "attempt": lease.attempt}
                    store.runs.save(run, CheckpointData(name, "etl", "sha256:v1:00", step_results=steps, **fields))
                    os.write(acknowledged, f"{lease.attempt} {sequence} {name}\n".encode())
                    # After some saves, the owner waits until the thief has read all of them, even on a busy machine.
                    is_long = len(steps) - held > 20
                    if mode == "takeovers" and (is_long or chance.random() < 0.3):
                        time.sleep(0.05 if is_long else chance.random() * 0.005)
            except (FencedError, RunLockedError):
                time.sleep(chance.random() * 0.01)
            except CheckpointStorageError as error:
                print(error, flush=True)
                raise


main(*sys.argv[1:])
