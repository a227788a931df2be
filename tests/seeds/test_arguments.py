"""Arguments of steps, recorded as JSON on request, and queried in the tables of the stores."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from flowckpt import MemoryCheckpointStore, Secret, WorkflowEngine, in_sync, open_store, step, workflow
from flowckpt.errors import StepDefinitionError, StepFailedError

QUERY = """
SELECT workflow_id, path, document -> 'argument_values' ->> 'source' AS source
FROM run_results
WHERE document -> 'argument_values' ->> 'source' = 'orders.csv'
"""

called: list[Any] = []


def load(source: Any, limit: int = 1000, *, password: Any = None) -> int:
    called.append(source)
    return limit


@workflow
def loads(source: str) -> Generator[Any, Any, Any]:
    yield step("plain").python(load, source)
    return (yield step("load").python(load, source, limit=7).record_arguments().checkpoint())


def recorded(store: Any, run: str = "run") -> dict[str, Any]:
    latest = asyncio.run(store.load_latest(run))
    return {each.path: dict(each.argument_values) for each in latest.step_results}


def test_arguments_are_recorded_as_json_on_request_and_show_has_them(flowckpt, tmp_path):
    (tmp_path / "shop.py").write_text(
        "from flowckpt import step, workflow\n\n"
        "def load(source, limit=1000):\n    return limit\n\n"
        "@workflow\n"
        "def loads(source: str):\n"
        "    return (yield step('load').python(load, source).record_arguments().checkpoint())\n"
    )
    flowckpt("run", "shop.py", "--id", "one", "-i", "source=orders.csv").expect(0)
    shown = flowckpt("show", "one", "--json").expect(0).document
    assert shown["steps"][0]["argument_values"] == {"source": "orders.csv", "limit": 1000}
    assert "(source='orders.csv', limit=1000)" in flowckpt("show", "one", "--steps").expect(0).out
    flowckpt("export", "one", "-o", "one.jsonl").expect(0)
    flowckpt("import", "one.jsonl", "--store", "sqlite:other.db").expect(0)
    moved = flowckpt("show", "one", "--json", "--store", "sqlite:other.db").expect(0).document
    assert moved["steps"][0]["argument_values"] == {"source": "orders.csv", "limit": 1000}


def test_recorded_arguments_are_queried_in_sqlite(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:{tmp_path}/runs.db")) as store:
        for source in ("orders.csv", "returns.csv"):
            WorkflowEngine(store).run_sync(loads, workflow_id=source, source=source)
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database:
        assert database.execute(QUERY).fetchall() == [("orders.csv", "load", "orders.csv")]


def test_recorded_arguments_are_queried_in_postgresql(postgres: Any, postgres_database: str) -> None:
    engine = WorkflowEngine(open_store(f"{postgres.url(postgres_database)}?allow_unsafe=true"))
    for source in ("orders.csv", "returns.csv"):
        engine.run_sync(loads, workflow_id=source, source=source)
    with psycopg.connect(postgres.dsn(postgres_database)) as connection:
        connection.execute("SET search_path TO flowckpt")
        assert connection.execute(QUERY).fetchall() == [("orders.csv", "load", "orders.csv")]


def test_each_call_of_a_map_records_its_own_and_a_resume_keeps_them() -> None:
    @workflow
    def flow() -> Generator[Any, Any, Any]:
        yield step("many").map(load, ["a", "b"], limit=2).record_arguments()
        yield step("command").command(["true"], env={"TOKEN": "hidden"}).record_arguments()
        yield step("end").wait("end")

    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(flow, workflow_id="run")
    in_sync(engine).signal("run", "end")
    assert engine.resume_sync(flow, workflow_id="run").status == "completed"
    found = recorded(engine.store)
    assert found["many/[0]"] == {"source": "a", "limit": 2, "password": None}
    assert found["command"] == {"argv": {"$tuple": ["true"]}, "cwd": None}


def test_no_secret_is_recorded() -> None:
    @workflow
    def flow(password: Secret[str]) -> Generator[Any, Any, Any]:
        text = f"db://{password.reveal()}@shop"
        yield step("load").python(load, text, password=password).record_arguments().checkpoint()

    engine = WorkflowEngine(MemoryCheckpointStore())
    assert engine.run_sync(flow, workflow_id="run", password="kept to ourselves").status == "completed"
    found = recorded(engine.store)["load"]
    assert "kept to ourselves" not in repr(found) and found["limit"] == 1000
    assert found["source"].startswith("db://")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "argument 'source' cannot be recorded"),
        ("x" * 70_000, "the arguments take 70,0"),
    ],
    ids=["an object", "too long"],
)
def test_what_cannot_be_recorded_fails_the_step_before_its_function_is_called(value: Any, said: str) -> None:
    called.clear()

    @workflow
    def flow() -> Generator[Any, Any, Any]:
        yield step("load").python(load, value).record_arguments().retry(3)

    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(flow)
    assert isinstance(result.error, StepFailedError) and result.error.error_type == "flowckpt.errors.EncodingError"
    assert said in str(result.error) and ".record_arguments()" in result.error.remedy
    assert called == []


def test_only_steps_that_call_something_record_arguments() -> None:
    @workflow
    def waiting() -> Generator[Any, Any, Any]:
        yield step("wait").wait("go").record_arguments()

    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(waiting)
    assert isinstance(result.error, StepDefinitionError) and ".record_arguments() cannot be used" in str(result.error)
    with pytest.raises(StepDefinitionError, match="record_arguments"):
        step("model").python(load, 1).ephemeral().record_arguments()
