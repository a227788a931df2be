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

from flowckpt import current_step, publish
from flowckpt.execution.executors.base import way_up
from flowckpt.execution.remote.channel import Uplink


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
    until = time.monotonic() + seconds
    try:
        Path(began).write_text(f"{os.getpid()}\n")
        while time.monotonic() < until:
            time.sleep(0.005)
    finally:
        if ended:
            Path(ended).write_text("cleaned up\n")


def ignore_everything(began: str) -> None:
    """Do not end, whatever is raised in it."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            Path(began).write_text(f"{os.getpid()}\n")
            time.sleep(60)
        except BaseException:
            pass


def start_another(began: str) -> None:
    """Start a process, and wait for it."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(began).write_text(f"{child.pid}\n")
    child.wait()


def begin_and_wait(began: str) -> None:
    """Write a file, and wait until there is another one."""
    Path(began).write_text("begun\n")
    while not Path(f"{began}-go").exists():
        time.sleep(0.005)


def thread_name() -> str:
    return threading.current_thread().name


def pay(log: str) -> str:
    append(log, "paid")
    return "paid"


def die_once_of(item: tuple[str, int]) -> int:
    return die_once(*item)


def fail_or_spin(began: str) -> None:
    """Fail where there is no file, once the others have begun; else continue for a minute."""
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


def show(gate: str, count: int) -> list[Any]:
    """Tell how far it is, and continue once somebody has seen it."""
    step = current_step()
    for done in range(1, count):
        step.progress(done, count, "on the way")
    until = time.monotonic() + 30
    while not Path(gate).exists():
        assert time.monotonic() < until, "nobody saw it"
        time.sleep(0.005)
    for done in range(1, 500):
        step.progress(done, 1000)
    step.progress(1000, 1000, "there")
    return [os.getpid(), step.tries, step.max_tries]


def publishes(text: str, number: int) -> str:
    """Publish two values, one of them twice."""
    publish("draft", f"{text} 1")
    current_step().publish("draft", text)
    publish("parts", {"words": (1, number)})
    return text


def tries(log: str) -> list[int]:
    """Fail twice, and say which try it was each time."""
    step = current_step()
    append(log, f"{step.tries} of {step.max_tries}")
    if step.tries < 3:
        raise ConnectionError("once more")
    return [step.tries, step.max_tries]


def copy(log: str, count: int, deadly: int = -1, how: str = "die") -> int:
    """Do pages, a state after each, and die between two saves: once."""
    step = current_step()
    for page in range(step.load(0), count):
        append(log, str(page))
        if page == deadly and Path(log).read_text().split().count(str(page)) == 1:
            if how == "die":
                die()
            raise ConnectionError("the line is down")
        step.save(page + 1)
    return int(step.load(-1))


@attrs.frozen
class Bookmark:
    page: int
    seen: frozenset[str]


async def bookmark() -> list[Any]:
    step = current_step()
    before = step.load(Bookmark(0, frozenset()), as_type=Bookmark)
    await step.save_async(Bookmark(before.page + 1, before.seen | {"a"}), as_type=Bookmark)
    found = step.load(as_type=Bookmark)
    assert found is not None
    return [before.page, found.page, sorted(found.seen)]


async def save_in_loop() -> None:
    current_step().save(1)


def save_what(state: Any) -> None:
    current_step().save(state)


def save_token(token: Any) -> None:
    current_step().save(token.reveal())


def save_object() -> str:
    try:
        current_step().save(object())
    except Exception as error:
        return type(error).__name__
    return "saved"


def save_and_swallow() -> str:
    try:
        current_step().save(1)
    except Exception as error:
        return type(error).__name__
    return "saved"


def save_at_the_end(began: str) -> None:
    """Save when it is stopped."""
    Path(began).write_text(f"{os.getpid()}\n")
    try:
        while True:
            time.sleep(0.005)
    finally:
        current_step().save("stopped")


def saved() -> Any:
    return current_step().load("nothing")


def leave_a_thread(log: str) -> str:
    """End, while a thread continues that saves later."""
    step = current_step()

    def later() -> None:
        time.sleep(0.2)
        try:
            step.save(1)
        except Exception as error:
            append(log, str(error))

    threading.Thread(target=later).start()
    return "ended"


def save_in_a_child() -> str:
    step = current_step()
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            step.save(1)
            os.write(writing, b"saved")
        except Exception as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.wait()
    return os.read(reading, 1000).decode()


def die_while_saving(size: int, after: float) -> None:
    """Be killed at some moment of a save of a large state."""
    step = current_step()
    if step.load() is None:
        step.save("a" * size)
        threading.Timer(after, die).start()
        for _ in range(1000):
            step.save("b" * size)


def save_from_threads(count: int) -> int:
    step = current_step()
    threads = [threading.Thread(target=step.save, args=(number,)) for number in range(count)]
    for each in threads:
        each.start()
        step.progress(1)
    for each in threads:
        each.join()
    return int(step.load())


def stay_a_while(began: str, seconds: float) -> None:
    """Work in C, where nothing can be raised."""
    Path(began).write_text("began\n")
    time.sleep(seconds)


def ask_for_ever(began: str) -> bytes:
    """Ask, as a step does that saves, where nobody answers."""
    way = way_up.get()
    assert way is not None
    carrying = Uplink(way)
    Path(began).write_text("began\n")
    return carrying.ask(b"are you there?")


def threads_that_carry() -> int:
    return sum(each.name == "flowckpt-uplink" for each in threading.enumerate())


class HttpError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


def is_overload(error: BaseException) -> bool:
    return isinstance(error, HttpError) and error.status == 503


def is_refused(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno == 111


def has_no_answer(error: BaseException) -> bool:
    raise LookupError("no rule for it")


def get_page(tries: str, status: int) -> str:
    """Fail twice: with an error of the program, or with a built-in one."""
    with open(tries, "a") as file:
        file.write("x")
    if Path(tries).stat().st_size < 3:
        raise HttpError(status) if status else OSError(111, "refused")
    return "page"
