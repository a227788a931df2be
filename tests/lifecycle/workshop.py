"""A small run with a bit of everything: evidence, typed outputs, a step that is done at most once, one that is undone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import attrs

from flowckpt import step, workflow
from flowckpt.evidence import file_sha256

ran: list[str] = []
world: dict[str, Any] = {}


def reset() -> None:
    ran.clear()
    world.clear()
    world["fails"] = False


@attrs.frozen
class Rows:
    names: tuple[str, ...]
    source: Path


def fetch(limit: int) -> Rows:
    ran.append("fetch")
    Path("raw.csv").write_text("x" * limit)
    return Rows(tuple(f"n{i}" for i in range(limit)), Path("raw.csv"))


def rent(size: int) -> str:
    ran.append("rent")
    return f"machine-{size}"


def give_back(machine: str) -> None:
    ran.append(f"give back {machine}")


def clean(rows: Rows) -> list[str]:
    ran.append("clean")
    return list(rows.names)


def pay(count: int) -> str:
    ran.append(f"pay {count}")
    return f"paid {count}"


def report(names: list[str], receipt: str) -> str:
    ran.append("report")
    if world.get("fails"):
        raise ValueError("no paper")
    return f"{len(names)} names, {receipt}"


@workflow
def shop(limit: int = 3, price: int = 7) -> Generator[Any, Any, str]:
    rows = yield step("fetch").python(fetch, limit).evidence(file_sha256("raw.csv")).checkpoint()
    yield step("rent").python(rent, limit).on_rerun(give_back).checkpoint()
    names = yield step("clean").python(clean, rows).checkpoint("work")
    receipt = yield step("pay").python(pay, price).at_most_once()
    return (yield step("report").python(report, names, receipt).checkpoint("work"))


PATHS = ["fetch", "rent", "clean", "pay", "report"]


def latest(store: Any, run: str = "run") -> Any:
    return asyncio.run(store.load_latest(run))


def paths(store: Any, run: str = "run") -> list[str]:
    return [result.path for result in latest(store, run).step_results]


def superseded(store: Any, run: str = "run") -> list[str]:
    return [each["path"] for each in latest(store, run).metadata.get("superseded", ())]


def recorded_outputs(store: Any, run: str, upto_attempt: int) -> dict[int, list[tuple[str, Any, int]]]:
    """Everything that each attempt left behind."""
    found = {}
    for attempt in range(1, upto_attempt + 1):
        data = asyncio.run(store.load_attempt(run, attempt))
        if data is not None:
            found[attempt] = [(each.path, repr(each.output), each.attempt) for each in data.step_results]
    return found


class Killed(BaseException):
    """The process died here."""


def exit_now() -> None:
    os._exit(9)
