"""What the steps of these tests do; it runs in other processes, so it is in a module that they can import."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import attrs

from flowckpt import current_step


@attrs.frozen
class Sum:
    parts: tuple[int, ...]
    total: int


class StubbornError(Exception):
    """Cannot be pickled, nor be built again from its arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")
        self.held = lambda: first


def double(number: int) -> int:
    return 2 * number


def pid() -> int:
    return os.getpid()


def summed(parts: tuple[int, ...]) -> Sum:
    return Sum(parts, sum(parts))


def told() -> list[Any]:
    step = current_step()
    return [os.getpid(), step.workflow_id, step.path, step.attempt, step.tries, step.idempotency_key]


async def awaited(text: str) -> str:
    await asyncio.sleep(0.001)
    return text


def stubborn() -> None:
    raise StubbornError("this", "that")


def unrecordable() -> object:
    return object()


def leave(code: int) -> None:
    sys.exit(code)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def append(file: str, line: str) -> None:
    with open(file, "a") as log:
        log.write(f"{line}\n")


def die_once(log: str, number: int = 0) -> int:
    append(log, f"{number}")
    if number == 0 and Path(log).read_text().splitlines().count("0") == 1:
        die()
    return number


def work(log: str, number: int) -> int:
    append(log, f"{number}")
    time.sleep(0.02)
    return number


def spin(began: str, ended: str = "", seconds: float = 60) -> None:
    """Work in Python, and clean up when it ends."""
    Path(began).write_text(f"{os.getpid()}\n")
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            time.sleep(0.005)
    finally:
        if ended:
            Path(ended).write_text("cleaned up\n")


def ignore_everything(began: str) -> None:
    """Do not end, whatever is raised in it."""
    Path(began).write_text(f"{os.getpid()}\n")
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            time.sleep(60)
        except BaseException:
            pass


def start_another(began: str) -> None:
    """Start a process, and wait for it."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(began).write_text(f"{child.pid}\n")
    child.wait()


def thread_name() -> str:
    return threading.current_thread().name


def pay(log: str) -> str:
    append(log, "paid")
    return "paid"


def die_once_of(item: tuple[str, int]) -> int:
    return die_once(*item)


def fail_or_spin(began: str) -> None:
    """Fail where there is no file, once the others have begun; else go on for a minute."""
    if began:
        spin(began)
    time.sleep(0.3)
    raise LookupError("nothing here")


def options(key: int, workers: int, retries: int, priority: int, pure: int) -> list[int]:
    return [key, workers, retries, priority, pure]


def use_token(token: Any) -> int:
    return len(token.reveal())


def tell_token(token: Any) -> str:
    return f"it is {token.reveal()}"


def fail_with_token(token: Any) -> None:
    raise LookupError(f"no entry for {token.reveal()}")
