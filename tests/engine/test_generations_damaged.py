"""A run of generations whose record is damaged: in the present generation, or in what an earlier one has left."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flowckpt import WorkflowEngine, continue_as, in_sync, open_store, step, workflow
from flowckpt.core.records import generation
from flowckpt.stores.base import StoreBase
from tests.reopening import spec_of

DONE: list[tuple[int, int]] = []


def noted(number: int, part: int) -> int:
    DONE.append((number, part))
    return number


@workflow("rounds")
def rounds(number: int = 1, last: int = 5, total: int = 0):
    for part in range(3):
        total += yield step("part").python(noted, number, part).checkpoint()
    if number == 3:
        yield step("go").wait("go")
    return total if number == last else continue_as(number=number + 1, last=last, total=total)


def damage(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def damage_second_part(kind: str, tmp_path: Path, attempt: int) -> None:
    """Damage the record of the second part of a generation."""
    if kind == "sqlite":
        with closing(sqlite3.connect(tmp_path / "runs.db")) as database, database:
            change = "UPDATE step_results SET document = replace(document, 'part', 'paid') WHERE position = 2"
            assert database.execute(change).rowcount == 1
    elif kind == "file":
        path = tmp_path / f"store/runs/run/{attempt:08}.jsonl"
        damage(path, path.read_bytes().index(b"part[1]"))
    else:
        records = sorted((tmp_path / "store").glob(f"runs/run/*{attempt:012}/records/*"))
        damage(records[3], -10)


def checked(store: StoreBase) -> set[str]:
    return {each.severity for each in asyncio.run(store.check("run"))}


def started(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> StoreBase:
    DONE.clear()
    store = open_store(spec_of(kind, request, tmp_path))
    assert WorkflowEngine(store).run_sync(rounds, workflow_id="run").status == "suspended"
    store.close()
    return open_store(spec_of(kind, request, tmp_path))


def ended(store: StoreBase) -> Any:
    engine = WorkflowEngine(store)
    in_sync(engine).signal("run", "go")
    return engine.resume_sync(rounds, workflow_id="run").output


@pytest.mark.parametrize("kind", ["file", "sqlite", "objects"])
def test_a_repair_keeps_what_is_intact_of_the_present_generation(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store = started(kind, request, tmp_path)
    damage_second_part(kind, tmp_path, 3)
    assert checked(store) == {"corrupt"}
    repaired = asyncio.run(store.repair("run"))
    assert (repaired.steps, bool(repaired.lost)) == (1, True)
    latest = asyncio.run(store.load_latest("run"))
    assert latest is not None
    assert (generation.number_of(latest.metadata), latest.inputs["number"]) == (3, 3)
    DONE.clear()
    assert ended(store) == 3 * sum(range(1, 6))
    assert DONE == [(3, 1), (3, 2), *((number, part) for number in (4, 5) for part in range(3))]
    assert checked(store) == {"ok"}


@pytest.mark.parametrize("kind", ["file", "objects"])
def test_damage_in_what_an_earlier_generation_left_does_not_count(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying:  # a process may die before it removes the generation before
        store = open_store(spec_of(kind, request, tmp_path))
        dying.setattr(type(store.runs), "_drop_earlier_generations", lambda *_: None)  # type: ignore[attr-defined]
        store = started(kind, request, tmp_path)
    damage_second_part(kind, tmp_path, 2)
    assert checked(store) == {"ok"}
    assert asyncio.run(store.attempts("run")) == [3]
    assert asyncio.run(store.repair("run")).lost == ()
    damage_second_part(kind, tmp_path, 3)
    assert checked(store) == {"corrupt"}
    assert asyncio.run(store.repair("run")).steps == 1
    assert asyncio.run(store.attempts("run")) == [3]
    assert len(asyncio.run(store.list_checkpoints("run"))) == 2
    assert ended(store) == 3 * sum(range(1, 6))
    assert checked(store) == {"ok"}
    assert not list(tmp_path.glob("store/runs/run/*00000001*"))
