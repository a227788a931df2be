"""A run of generations whose processes are killed with SIGKILL at the boundary between two, in stores of each kind."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flowckpt import RunOptions, WorkflowEngine, continue_as, open_store, step, workflow
from flowckpt.core.records import Reason, generation
from flowckpt.engine.run.resumption import count_crashes, read_started_steps
from flowckpt.errors import CrashLoopError
from flowckpt.stores.base import StoreBase
from tests.forked import processes
from tests.reopening import spec_of

GENERATIONS = 4


def noted(ledger: str, number: int) -> int:
    with Path(ledger).open("a") as file:
        file.write(f"{number}\n")
    return number


@workflow("pairs")
def pairs(ledger: str, first: int = 0, total: int = 0, generations: int = GENERATIONS):
    one = yield step("one").python(noted, ledger, first).checkpoint()
    two = yield step("two").python(noted, ledger, first + 1).checkpoint()
    total += one + two
    if first + 2 == 2 * generations:
        return total
    return continue_as(ledger=ledger, first=first + 2, total=total, generations=generations)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(store: StoreBase, moment: str) -> StoreBase:
    """Return a store whose process is killed at the first boundary: before the claim, after it, or after the save."""
    begin, save = store.begin_generation, store.save

    async def begin_and_die(*given: Any, **options: Any) -> Any:
        if moment == "before the claim":
            die()
        lease = await begin(*given, **options)
        if moment == "after the claim":
            die()
        return lease

    async def save_and_die(workflow_id: str, data: Any) -> None:
        await save(workflow_id, data)
        if data.reason is Reason.CONTINUED:
            die()

    store.begin_generation, store.save = begin_and_die, save_and_die  # type: ignore[method-assign]
    return store


def run_and_die(spec: str, environ: dict[str, str], ledger: str, moment: str) -> None:
    os.environ.update(environ)
    engine = WorkflowEngine(dying(open_store(spec), moment))
    options = RunOptions(max_crashes=3, force=moment == "after the save")
    engine.run_sync(pairs, workflow_id="run", if_exists="resume", ledger=ledger, options=options)


@pytest.fixture(params=["file", "sqlite", "postgresql", "objects", "s3"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return spec_of(request.param, request, tmp_path)


async def crashes(store: StoreBase) -> int:
    """Return the crash count that a resume would start with."""
    lease = await store.acquire("run")
    assert lease.latest is not None
    started = await read_started_steps(store, lease.workflow_id, lease.latest)
    found = await count_crashes(store, lease, lease.latest, started)
    await store.release("run", token=lease.token)
    return found.count


def test_a_run_killed_at_its_boundaries_ends_as_an_uninterrupted_one_and_counts_each_crash_once(
    spec: str, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    store = open_store(spec)
    engine = WorkflowEngine(store)
    for moment, number, count in [
        ("before the claim", 1, 1),
        ("after the claim", 1, 2),
        ("after the claim", 1, 3),
        ("after the save", 2, 1),
    ]:
        process = processes.Process(target=run_and_die, args=(spec, dict(os.environ), str(ledger), moment))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        latest = asyncio.run(store.load_latest("run"))
        assert latest is not None
        assert (generation.number_of(latest.metadata), asyncio.run(crashes(store))) == (number, count)
        if count == 3:
            with pytest.raises(CrashLoopError) as refused:
                engine.resume_sync(pairs, workflow_id="run")
            assert refused.value.count == count
    result = engine.resume_sync(pairs, workflow_id="run")
    assert (result.status, result.output) == ("completed", sum(range(2 * GENERATIONS)))
    assert [int(line) for line in ledger.read_text().split()] == [*range(2 * GENERATIONS)]
    assert {each.severity for each in asyncio.run(store.check("run"))} == {"ok"}


def held(spec: str, request: pytest.FixtureRequest) -> tuple[Mapping[str, int], int]:
    """Return how many rows, files or objects a store holds, by kind, and the bytes of those that are not rows."""
    if spec.startswith("postgresql"):
        server, name = request.getfixturevalue("postgres"), request.getfixturevalue("postgres_database")
        ours = "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname !~ '^(pg_|information_schema)'"
        tables = [table for (table,) in server.execute(ours, name)]
        return {table: server.execute(f"SELECT count(*) FROM {table}", name)[0][0] for table in tables}, 0
    if spec.startswith("sqlite"):
        with closing(sqlite3.connect(spec.partition(":")[2])) as database:
            tables = [table for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}, 0
    if spec.startswith("s3"):
        bucket, server = spec.split("/")[2], request.getfixturevalue("s3")
        sizes = [len(server.read(bucket, key)) for key in server.keys(bucket)]
    else:
        place = Path(spec.partition("?")[0].removeprefix("objects+file://").removeprefix("file:"))
        sizes = [each.stat().st_size for each in place.rglob("*") if each.is_file() and each.name != "reserve"]
    return {"objects": len(sizes)}, sum(sizes)


def test_a_run_takes_as_much_room_after_many_generations_as_after_some(
    spec: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rows, sizes = [], []
    for count in (1, 12, 36):  # more than are listed
        with closing(open_store(spec)) as store:
            inputs = {"ledger": str(tmp_path / "ledger"), "generations": count}
            WorkflowEngine(store).run_sync(pairs, workflow_id=f"run{count:02}", **inputs)
        found, size = held(spec, request)
        rows.append(found)
        sizes.append(size)
    some, many = ({kind: after[kind] - before[kind] for kind in after} for before, after in pairwise(rows))
    assert sum(some.values()) and many == some
    assert sizes[2] - sizes[1] <= (sizes[1] - sizes[0]) * 1.02  # numbers have more digits
