"""Workflows for the proofs: each uses one thing that a replay could get wrong, and notes every effect that it has."""

from __future__ import annotations

from collections.abc import Generator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs

from flowckpt import parallel, step, workflow
from flowckpt.errors import StepFailedError

effects: list[str] = []
"""What the steps did to the world, in order; a test clears it."""

tries: dict[str, int] = {}


@attrs.frozen
class Page:
    number: int
    words: tuple[str, ...]
    seen_at: datetime


def note(what: str, value: Any = None) -> Any:
    effects.append(what)
    return value


def page(number: int) -> Page:
    effects.append(f"page {number}")
    return Page(number, ("a", "b") * number, datetime(2026, 1, number + 1, tzinfo=UTC))


def exotic() -> dict[Any, Any]:
    effects.append("exotic")
    return {1: (1, 2), "path": Path("a/b"), (1, "x"): {Decimal("1.20")}, "bytes": b"\0", "set": frozenset({1})}


def fails(what: str) -> None:
    effects.append(what)
    raise KeyError(what)


def flaky(what: str, until: int) -> int:
    effects.append(what)
    tries[what] = tries.get(what, 0) + 1
    if tries[what] < until:
        raise OSError(f"try {tries[what]}")
    return tries[what]


def large(number: int) -> str:
    effects.append(f"large {number}")
    return f"{number} " * 50_000


def model() -> object:
    return object()


@workflow
def linear(n: int = 3) -> Generator[Any, Any, list[int]]:
    out = []
    for i in range(n):
        out.append((yield step("one").python(note, f"one {i}", i).checkpoint()))
    return out


@workflow
def sparse(n: int = 6) -> Generator[Any, Any, int]:
    total = 0
    for i in range(n):
        s = step("work").python(note, f"work {i}", i * i)
        total += yield (s.checkpoint() if i % 2 else s)
    return total


@workflow
def branches(n: int = 4) -> Generator[Any, Any, str]:
    seen = ""
    while len(seen) < n:
        number = yield step("count").python(note, f"count {len(seen)}", len(seen)).checkpoint()
        if number % 2:
            seen += yield step("odd").python(note, f"odd {number}", "o").checkpoint()
        else:
            seen += yield step("even").python(note, f"even {number}", "e")
    return seen


@workflow
def handles(n: int = 2) -> Generator[Any, Any, list[str]]:
    out = []
    for i in range(n):
        try:
            yield step("try").python(fails, f"try {i}").checkpoint()
        except StepFailedError as error:
            assert error.failed_with(KeyError)
            assert not error.failed_with(OSError)
            out.append((yield step("instead").python(note, f"instead {i}", error.error_message).checkpoint()))
        finally:
            yield step("always").python(note, f"always {i}")
    return out


@workflow
def retries() -> Generator[Any, Any, int]:
    first = yield step("flaky").python(flaky, "flaky", 2).retry(5, on=OSError).checkpoint()
    yield step("after").python(note, "after").checkpoint()
    return first >= 2


@workflow
def typed(n: int = 3) -> Generator[Any, Any, list[Page]]:
    pages = []
    for i in range(n):
        found = yield from step("page").python(page, i).checkpoint()
        assert type(found) is Page
        assert type(found.words) is tuple
        pages.append(found)
    return pages


@workflow
def closed_set() -> Generator[Any, Any, dict[Any, Any]]:
    first = yield step("exotic").python(exotic).checkpoint()
    assert type(first[1]) is tuple
    yield step("second").python(note, "second", first).checkpoint()
    return first


@workflow
def large_values(n: int = 3) -> Generator[Any, Any, int]:
    total = 0
    for i in range(n):
        total += len((yield step("large").python(large, i).checkpoint()))
    same = yield step("again").python(large, 0).checkpoint()
    return total + len(same)


@workflow
def ephemeral() -> Generator[Any, Any, bool]:
    one = yield step("model").python(model).ephemeral()
    yield step("use").python(note, "use").checkpoint()
    two = yield step("model").python(model).ephemeral()
    yield step("use").python(note, "use again").checkpoint()
    return one is not two


def inner(prefix: str) -> Generator[Any, Any, int]:
    first = yield step("inner").python(note, f"{prefix} inner", 1).checkpoint()
    second = yield step("inner").python(note, f"{prefix} inner again", 2)
    return first + second


@workflow
def delegates() -> Generator[Any, Any, int]:
    a = yield from inner("a")
    b = yield from inner("b")
    return a + b


async def awaited(what: str) -> str:
    effects.append(what)
    return what


@workflow
def asynchronous() -> Generator[Any, Any, list[str]]:
    a = yield step("async").python(awaited, "first").checkpoint()
    b = yield step("async").python(awaited, "second").checkpoint()
    return [a, b]


@workflow
def mutates() -> Generator[Any, Any, list[int]]:
    rows = yield step("rows").python(note, "rows", [1, 2]).checkpoint()
    rows.append(3)  # the generator's own copy: it must not reach the record
    more = yield step("more").python(note, "more", rows).checkpoint()
    return rows + more


def effect(item: Any) -> Any:
    return note(f"effect {item}", (item, item))


async def awaited_effect(item: Any) -> Any:
    effects.append(f"awaited {item}")
    return [item]


def odd_fails(item: int) -> int:
    effects.append(f"odd {item}")
    if item % 2:
        raise KeyError(item)
    return item


@workflow
def maps(n: int = 5) -> Generator[Any, Any, list[Any]]:
    pages = yield step("pages").map(effect, range(n), concurrency=2).checkpoint()
    more = yield step("more").map(awaited_effect, (page[0] for page in pages), key=str).checkpoint()
    one = yield step("one").map(effect, ["x", "y"], concurrency=1)
    none = yield step("none").map(effect, []).checkpoint()
    return [pages, more, one, none]


@workflow
def tolerates() -> Generator[Any, Any, list[Any]]:
    kept = yield step("kept").map(odd_fails, range(4), tolerate=0.5).checkpoint()
    try:
        yield step("lost").map(odd_fails, range(10, 13), concurrency=1).checkpoint()
    except StepFailedError as error:
        lost = [cause.path for cause in error.causes]  # type: ignore[attr-defined]
    last = yield step("last").python(note, "last").checkpoint()
    return [[str(each) for each in kept], lost, last]


@workflow
def child(n: int) -> Generator[Any, Any, tuple[int, list[Any]]]:
    first = yield step("first").python(note, f"child {n}", n).checkpoint()
    rest = yield step("rest").map(effect, [f"{n}a", f"{n}b"], concurrency=2).checkpoint()
    return first, rest


@workflow
def children() -> Generator[Any, Any, list[Any]]:
    one = yield step("one").workflow(child, n=1).checkpoint()
    many = yield step("many").map(child, [2, 3], concurrency=2).checkpoint()
    again = yield step("one").workflow(child, n=4)
    return [one, many, again]


@workflow
def groups() -> Generator[Any, Any, list[Any]]:
    a, b, (c, d) = yield parallel(
        step("a").python(note, "a", 1).checkpoint(),
        step("b").map(effect, ["b", "c"], concurrency=2),
        parallel(step("c").workflow(child, n=5), step("a").python(note, "inner a", {2}).checkpoint(), name="inner"),
    ).checkpoint()
    opened, made = yield parallel(
        step("model").python(model).ephemeral(), step("made").python(note, "made", 6)
    ).checkpoint()
    assert type(opened) is object
    e, f = yield parallel(step("x").python(note, "x", 3), step("x").python(note, "x again", 4), concurrency=1)
    return [a, b, c, d, made, e, f]


CORPUS = [
    linear,
    sparse,
    branches,
    handles,
    retries,
    typed,
    closed_set,
    large_values,
    ephemeral,
    delegates,
    asynchronous,
    mutates,
    maps,
    tolerates,
    children,
    groups,
]
BESIDE = [maps, tolerates, children, groups]
"""Those whose steps run beside each other: how many saves they make, and in which order, is not the same each time."""
