"""What type checkers make of the language. Lines that end in `# error` must be refused, `reveal_type` lines show the type said."""

# ruff: noqa: F821  # reveal_type is the type checkers' own
from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any, Never

from flowckpt import (
    Secret,
    check_determinism,
    continue_as,
    current_step,
    now,
    parallel,
    random,
    step,
    uuid,
    workflow,
    workflow_logger,
)
from flowckpt.core.dsl import Step


class Row:
    pass


def fetch(source: str, limit: int = 10, *, strict: bool = False) -> list[Row]:
    raise NotImplementedError


def count(rows: list[Row]) -> int:
    raise NotImplementedError


def untyped(x):  # type: ignore[no-untyped-def]
    return x


@workflow("etl")
def etl(source: str, limit: int = 1000) -> Generator[Any, Any, int]:
    rows = yield from step("fetch").python(fetch, source, limit=limit).retry(3).checkpoint()
    reveal_type(rows)  # says: list[Row]
    number = yield from step("count").checkpoint("here").timeout(5).python(count, rows)
    reveal_type(number)  # says: int
    made = step("fetch").python(fetch, source)
    reveal_type(made)  # says: Step[list[Row]]
    explicit = yield from step("explicit").python(fetch, args=(source,), kwargs={"limit": 1})
    reveal_type(explicit)  # says: list[Row]
    far = yield from step("far").python(fetch, source).on("process").retry(3)
    reveal_type(far)  # says: list[Row]
    counts = yield from step("counts").map(count, [rows]).on("gpu", resources={"GPU": 1})
    reveal_type(counts)  # says: list[int]
    kept = made.version("2").ephemeral()
    reveal_type(kept)  # says: Step[list[Row]]
    plain = yield step("plain").python(fetch, source)
    reveal_type(plain)  # says: Any
    made_page = yield from step("make").command(["make", Path("all")], cwd=source).checkpoint()
    reveal_type(made_page)  # says: CommandOutput
    anything = yield from step("untyped").python(untyped, 1)
    reveal_type(anything)  # says: Any
    return number


@workflow
def bare(name: str) -> Generator[Step[Any], Any, str]:
    yield step("s").python(count, [])
    return name


def login(token: Secret[str]) -> str:
    raise NotImplementedError


@workflow
def secretive(token: Secret[str], pin: Secret[int] | None = None) -> Generator[Any, Any, str]:
    reveal_type(token)  # says: Secret[str]
    reveal_type(token.reveal())  # says: str
    session = yield from step("login").python(login, token).secret()
    reveal_type(session)  # says: Secret[str]
    before = yield from step("login").retry(2).secret().python(login, token)
    reveal_type(before)  # says: Secret[str]
    answer = yield from step("curl").secret().command(["curl"], env={"T": token, "U": None}, stdin=session)
    reveal_type(answer)  # says: Secret[CommandOutput]
    yield step("login").python(login, session)
    return session.reveal()


def wrong(source: str, secret: Secret[str]) -> None:
    step("login").python(login, source)  # error
    step("count").python(count, secret)  # error
    step("make").command(["make", secret])  # error
    step("make").command(["make"], env={"A": Secret(5)})  # error
    secretive(source)  # error
    step("fetch").python(fetch)  # error
    step("fetch").python(fetch, 5)  # error
    step("fetch").python(fetch, source, limit="many")  # error
    step("fetch").python(fetch, source, unknown=1)  # error
    step("fetch").python(fetch(source))  # error
    step("fetch").python(fetch, source).retry("three")  # error
    step("make").command()  # error
    step("make").command(["make", 5])  # error
    step("make").command(["make"], env={"A": 5})  # error
    step("make").command(["make"], stdin=5)  # error
    step(5)  # error
    etl(5)  # error
    etl("a", limit="b")  # error
    etl()  # error
    workflow(fetch)  # error


def right(source: str) -> None:
    step("fetch").python(fetch, source, 5, strict=True)
    argv, paths = ["make", source], [Path(source)]
    reveal_type(step("make").command(argv, env={"A": "b", "C": None}, stdin=b""))  # says: Step[CommandOutput]
    step("make").command(paths)
    step("make").command(("make", Path(source)))
    reveal_type(etl("a", limit=1))  # says: Generator[Any, Any, int]
    reveal_type(bare("x"))  # says: Generator[Any, Any, str]
    reveal_type(etl.name)  # says: str


class Order:
    pass


@workflow
def waits() -> Generator[Any, Any, str]:
    nap = step("nap").sleep(60).checkpoint()
    reveal_type(nap)  # says: Step[None]
    yield from nap
    anything = yield from step("go").wait("go")
    reveal_type(anything)  # says: Any
    order = yield from step("order").wait("order", type=Order, timeout=60)
    reveal_type(order)  # says: Order
    perhaps = yield from step("order").wait("order", type=Order, timeout=60, default=None)
    reveal_type(perhaps)  # says: Order | None
    number = yield from step("number").wait("number", type=int, timeout=60, default=0)
    reveal_type(number)  # says: int
    approval = yield from step("review").approval(timeout=60)
    reveal_type(approval)  # says: Approval
    return approval.by


def wrong_waits() -> None:
    step("nap").sleep("60")  # error
    step("go").wait("go", type="Order")  # error
    step("go").wait("go", type=int, default=None)  # error
    step("review").approval(timeout="60")  # error


async def fetch_later(source: str) -> Row:
    raise NotImplementedError


def size(row: Row) -> int:
    raise NotImplementedError


def forget(row: Row) -> None:
    raise NotImplementedError


def name_of(source: str) -> str:
    raise NotImplementedError


@workflow
def beside(sources: list[str]) -> Generator[Any, Any, int]:
    later = yield from step("later").python(fetch_later, "a")
    reveal_type(later)  # says: Row
    rows = yield from step("rows").map(fetch_later, sources, key=name_of, concurrency=4).retry(2).checkpoint()
    reveal_type(rows)  # says: list[Row]
    sizes = yield from step("sizes").map(size, (row for row in rows))
    reveal_type(sizes)  # says: list[int]
    some = yield from step("some").map(size, rows, tolerate=0.1)
    reveal_type(some)  # says: list[int | StepFailedError]
    texts = yield from step("texts").map(bare, sources)
    reveal_type(texts)  # says: list[str]
    text = yield from step("text").workflow(bare, name="x").rollback(print).checkpoint()
    reveal_type(text)  # says: str
    a = step("a").python(size, later)
    b = step("b").workflow(bare, name="x")
    c = step("c").map(size, rows)
    two = yield from parallel(a, b)
    reveal_type(two)  # says: tuple[int, str]
    three = yield from parallel(a, b, c, name="three", concurrency=2).checkpoint()
    reveal_type(three)  # says: tuple[int, str, list[int]]
    four = yield from parallel(a, b, c, a)
    reveal_type(four)  # says: tuple[int, str, list[int], int]
    five = yield from parallel(a, b, c, a, b)
    reveal_type(five)  # says: tuple[int, str, list[int], int, str]
    six = yield from parallel(a, b, c, a, b, parallel(a, b))
    reveal_type(six)  # says: tuple[int, str, list[int], int, str, tuple[int, str]]
    seven = yield from parallel(a, b, c, a, b, c, b)
    reveal_type(seven)  # says: tuple[int, str, list[int], int, str, list[int], str]
    eight = yield from parallel(a, b, c, a, b, c, b, a)
    reveal_type(eight)  # says: tuple[int, str, list[int], int, str, list[int], str, int]
    many = yield from parallel(*[a, a])
    reveal_type(many)  # says: tuple[int, ...]
    undone = step("undone").python(size, later).rollback(forget)
    reveal_type(undone)  # says: Step[int]
    return sizes[0]


def wrong_beside(sources: list[str], rows: list[Row]) -> None:
    step("sizes").map(size, sources)  # error
    step("sizes").map(size, 5)  # error
    step("sizes").map(size, rows, key=size, concurrency="many")  # error
    step("texts").workflow(bare, nam="x")  # error
    step("texts").workflow(bare, name=5)  # error
    step("texts").workflow(size, row=rows[0])  # error
    parallel(size, size)  # error


@workflow
def asks() -> Generator[Step[Any], Any, float]:
    at = yield from now()
    reveal_type(at)  # says: datetime
    request = yield from uuid("request")
    reveal_type(request)  # says: UUID
    drawn = yield from random()
    reveal_type(drawn)  # says: float
    return drawn


async def saves() -> None:
    inside = current_step()
    reveal_type(inside.load())  # says: Any
    reveal_type(inside.load(0))  # says: int
    reveal_type(inside.load([""]))  # says: list[str]
    reveal_type(inside.load(as_type=Path))  # says: Path | None
    inside.save({"page": 3})
    await inside.save_async({"page": 3}, as_type=dict)
    inside.progress(1, 3.5, "half")
    inside.progress("1")  # error
    inside.save()  # error
    reveal_type(check_determinism(asks).is_deterministic)  # says: bool
    workflow_logger("shop").info("%s", 1)
    step("s").python(count, []).retry(3, on=lambda error: "503" in str(error), deadline=60)
    step("s").python(count, []).retry(3, on=(OSError, is_worth_it))
    step("s").python(count, []).retry(3, on=count)  # error
    continue_as(5)  # error


def is_worth_it(error: BaseException) -> bool:
    return True


@workflow("endless")
def endless(number: int = 1) -> Generator[Any, Any, Any]:
    yield from step("count").python(count, [])
    return continue_as(number=number + 1)


def ends_with_a_number(number: int = 1) -> Generator[Any, Any, int]:
    yield from step("count").python(count, [])
    return number if number > 3 else continue_as(number=number + 1)


def ends_with_rows(number: int = 1) -> Generator[Any, Any, list[Row] | None]:
    yield from step("count").python(count, [])
    if number > 3:
        return None
    return continue_as(number=number + 1)


def returns_nothing() -> Generator[Any, Any, None]:
    yield from step("count").python(count, [])
    return continue_as()  # type: ignore[return-value]  # mypy alone refuses it, whatever the type of the value


def never_returns() -> Generator[Any, Any, Never]:
    yield from step("count").python(count, [])
    return continue_as()  # error
