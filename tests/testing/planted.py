"""Workflows with one mistake each, which only a crash, a failure or a repeated message brings to light."""

from datetime import datetime
from pathlib import Path

from flowckpt import step, workflow
from flowckpt.errors import StepFailedError
from flowckpt.evidence import file_sha256

outbox: list[list[int]] = []
cache: dict[str, list[int]] = {}


def fetch() -> list[int]:
    return [1, 2, 3]


def send(rows: list[int]) -> str:
    outbox.append(rows)
    return "sent"


def append(rows: list[int]) -> int:
    with open("sent.log", "a") as file:
        file.write("sent\n")
    return len(rows)


def write(rows: list[int]) -> str:
    Path("orders.csv").write_text(str(rows))
    return "orders.csv"


def load(name: str) -> int:
    return len(Path(name).read_text())


def take(value: str) -> str:
    return value


def warm(rows: list[int]) -> int:
    cache["rows"] = rows
    return len(rows)


def total(count: int) -> int:
    return sum(cache.get("rows", []))


@workflow
def effect_before_checkpoint():
    rows = yield step("fetch").python(fetch).checkpoint()
    return (yield step("send").python(send, rows).checkpoint())


@workflow
def appended_file():
    rows = yield step("fetch").python(fetch).checkpoint()
    return (yield step("append").python(append, rows).evidence(file_sha256("sent.log")).checkpoint())


@workflow
def unclaimed_file():
    rows = yield step("fetch").python(fetch).checkpoint()
    name = yield step("write").python(write, rows).checkpoint()
    return (yield step("load").python(load, name).checkpoint())


@workflow
def time_in_an_argument():
    return len((yield step("stamp").python(take, datetime.now().isoformat()).checkpoint()))


@workflow
def set_order():
    taken = []
    for name in {"alpha", "beta", "gamma", "delta", "epsilon", "zeta"}:
        taken.append((yield step("take").python(take, name)))
    return sorted(taken)


@workflow
def cached_global():
    rows = yield step("fetch").python(fetch).checkpoint()
    count = yield step("warm").python(warm, rows).checkpoint()
    return (yield step("total").python(total, count).checkpoint())


@workflow
def swallowed_failure():
    rows: list[int] = []
    try:
        rows = yield step("fetch").python(fetch).checkpoint()
    except StepFailedError:
        pass
    return len(rows)


@workflow
def wait_answered_twice():
    first = yield step("review").wait("review")
    second = yield step("review").wait("review")
    return [first, second]


@workflow
def without_a_mistake():
    name = yield step("write").python(write, [1, 2]).evidence(file_sha256("orders.csv")).checkpoint()
    yield step("pause").sleep(3600)
    word = yield step("word").wait("word")
    yield step("send").python(send, [len(word)]).at_most_once().checkpoint()
    try:
        return (yield step("load").python(load, name))
    except StepFailedError:
        return (yield step("instead").python(len, word))
