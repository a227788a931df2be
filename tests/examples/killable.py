"""A pipeline made to be killed, and the process that runs it: `killable.py STORE RUN GENERATION loop|guest`.

It says `begun` once Python is up, and `done` at the end. In the store's directory it keeps two logs, each line of which
is one append: `RUN.effects` has the steps that were executed, `RUN.acknowledged` how many results were told to be safe.
"""

import asyncio
import hashlib
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import attrs

from flowckpt import CheckpointData, FileCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.errors import CheckpointNotFoundError
from flowckpt.events import CheckpointSaved, WorkflowFailed

LOGS = Path()
RUN = GENERATION = ""


@attrs.frozen
class Total:
    digest: str
    parts: tuple[int, ...]


@workflow("killable")
def killable(seed: int = 7) -> Generator[Any, Any, list[Any]]:
    opened = yield step("open").python(open_connection).ephemeral()
    state = f"{seed}"
    for number in range(4):
        state = yield step("mix").python(mix, path("mix", number), state).checkpoint()
    try:
        yield step("refuse").python(refuse, "refuse", state)
    except Exception as error:
        state += type(error).__name__
    for number in range(4, 8):
        state = yield step("mix").python(mix, path("mix", number), state)  # no checkpoints: lost in a crash
    large = yield step("large").python(enlarge, "large", state).checkpoint()
    total = yield from step("total").python(add_up, "total", large).checkpoint("total")
    waited = yield step("wait").python(wait, "wait", total.digest)
    flaky = yield step("flaky").python(Flaky().call, "flaky", waited).retry(3, backoff=0.001).checkpoint()
    for number in range(8, 16):
        state = mix_of(state, flaky)
        state = yield step("mix").python(mix, path("mix", number), state)
        if number % 2:
            state = yield step("even").python(mix, path("even", (number - 9) // 2), state).checkpoint()
    return [state, total.digest, total.parts, len(large), opened is not None]


def path(name: str, occurrence: int) -> str:
    return f"{name}[{occurrence}]" if occurrence else name


def effect(line: str) -> None:
    """Do what must not be done twice; it takes a few milliseconds, so that a kill can hit it."""
    time.sleep(0.001 + 0.003 * (len(line) % 3))
    append(LOGS / f"{RUN}.effects", f"{GENERATION} {line}", sync=True)


def append(file: Path, line: str, *, sync: bool = False) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    if sync:
        os.fsync(descriptor)
    os.close(descriptor)


def open_connection() -> object:
    return object()


def mix_of(*parts: str) -> str:
    return hashlib.sha256("/".join(parts).encode()).hexdigest()


def mix(path: str, state: str) -> str:
    effect(path)
    return mix_of(path, state)


def refuse(path: str, state: str) -> str:
    effect(path)
    raise LookupError(state)


def enlarge(path: str, state: str) -> list[str]:
    effect(path)
    return [mix_of(state, str(number)) for number in range(4000)]


def add_up(path: str, large: list[str]) -> Total:
    effect(path)
    return Total(mix_of(*large), tuple(len(part) for part in large[:3]))


async def wait(path: str, state: str) -> str:
    await asyncio.sleep(0.002)
    effect(path)
    return mix_of(path, state)


class Flaky:
    tries = 0

    def call(self, path: str, state: str) -> str:
        self.tries += 1
        if self.tries == 1:
            raise ConnectionError("not yet")
        effect(path)
        return mix_of(path, state)


# --- the process -----------------------------------------------------------------------------------------------------


def acknowledge(steps: int) -> None:
    append(LOGS / f"{RUN}.acknowledged", f"{GENERATION} {steps}")


class TellingStore(FileCheckpointStore):
    """Acknowledges a checkpoint when its save has returned."""

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        await super().save(workflow_id, data)
        acknowledge(len(data.step_results))


async def as_guest(engine: WorkflowEngine) -> None:
    """Run in a loop that is not the engine's own, and acknowledge by the events."""
    if await engine.store.load_latest(RUN) is None:
        events = engine.execute(killable, workflow_id=RUN)
    else:
        events = engine.resume(killable, workflow_id=RUN)
    async for event in events:
        if isinstance(event, CheckpointSaved):
            acknowledge(event.steps)
        elif isinstance(event, WorkflowFailed):
            raise RuntimeError(f"{event.error_type}: {event.error_message}")


def run_in_own_loop(engine: WorkflowEngine) -> None:
    try:
        engine.resume_sync(killable, workflow_id=RUN).unwrap()
    except CheckpointNotFoundError:
        engine.run_sync(killable, workflow_id=RUN).unwrap()


if __name__ == "__main__":
    store, RUN, GENERATION, mode = sys.argv[1:]
    LOGS = Path(store)
    print("begun", flush=True)
    if mode == "guest":
        asyncio.run(as_guest(WorkflowEngine(FileCheckpointStore(store), max_crashes=0)))
    else:
        run_in_own_loop(WorkflowEngine(TellingStore(store), max_crashes=0))
    print("done", flush=True)
