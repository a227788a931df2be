"""The workflows of the golden databases. Their code is fingerprinted in the rows, so it is never changed."""

from __future__ import annotations

import os
from decimal import Decimal

from flowckpt import parallel, step, workflow


def fetch(count):
    return {"rows": list(range(count)), "price": Decimal("1.50"), 7: (1, 2)}


def large(letter, size):
    return letter * size


def die_or(value):
    if os.environ.get("GOLDEN_DIES"):
        os._exit(9)
    return value


def fail():
    raise ValueError("it is no use")


def double(number):
    return number * 2


def undo(result):
    return None


@workflow("etl")
def etl(count: int = 3, size: int = 100):
    rows = yield step("fetch").python(fetch, count).checkpoint()
    text = yield step("large").python(large, "x", size).rollback(undo).checkpoint()
    last = yield step("last").python(die_or, len(text)).checkpoint()
    return len(rows["rows"]) + last


@workflow("failing")
def failing():
    yield step("fetch").python(fetch, 1).checkpoint()
    yield step("fail").python(fail).retry(2, delay=0).checkpoint()


@workflow("child")
def child(number: int):
    doubled = yield step("double").python(double, number).checkpoint()
    return doubled


@workflow("composed")
def composed():
    pages = yield step("pages").map(double, [1, 2, 3]).checkpoint()
    left, right = yield parallel(step("left").python(double, 10), step("right").python(large, "r", 5))
    inside = yield step("inside").workflow(child, number=21).checkpoint()
    last = yield step("last").python(die_or, 1).checkpoint()
    return sum(pages) + left + len(right) + inside + last


@workflow("proved")
def proved(path: str):
    from flowckpt.evidence import file_sha256

    yield step("write").python(double, 1).evidence(file_sha256(path)).checkpoint()
    last = yield step("last").python(die_or, 1).checkpoint()
    return last


if hasattr(step("any"), "wait"):  # since version 2

    @workflow("waiting")
    def waiting():
        number = yield step("fetch").python(double, 4).checkpoint()
        answer = yield step("go").wait("go")
        return number + answer["n"]
