"""`.cache()`: a step takes the result of an equal call in any run of the store, once its evidence was looked at."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from crashing import CrashingStore, SimulatedCrash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowckpt import (
    FileCheckpointStore,
    MemoryCheckpointStore,
    RunOptions,
    Secret,
    WorkflowEngine,
    events,
    in_sync,
    parallel,
    step,
    workflow,
)
from flowckpt.engine.rules.plan import Decision
from flowckpt.engine.run import result_cache
from flowckpt.errors import CheckpointStorageError, StepDefinitionError
from flowckpt.evidence import command_exit, file_sha256, predicate
from flowckpt.maintenance import export_run, import_run
from flowckpt.stores import SqliteCheckpointStore, open_store
from flowckpt.stores.log.sealing.keys import KeyRing, new_key
from flowckpt.testing import FakeClock
from tests.reopening import spec_of

calls: list[Any] = []


@pytest.fixture(autouse=True)
def counted():
    calls.clear()


def fetch(source: Any) -> str:
    calls.append(source)
    return f"rows of {source}"


def fails(source: Any) -> None:
    calls.append(source)
    raise ValueError(source)


@workflow
def etl(source: str = "a", max_age: Any = None, version: str | None = None):
    made = step("fetch").python(fetch, source).cache(max_age=max_age)
    return (yield (made if version is None else made.version(version)).checkpoint())


def latest(store: Any, run: str) -> Any:
    return asyncio.run(store.load_latest(run))


def test_a_second_run_takes_the_result_of_the_first(reopen):
    first = WorkflowEngine(reopen()).run_sync(etl, workflow_id="first")
    second = WorkflowEngine(reopen()).run_sync(etl, workflow_id="second")
    assert calls == ["a"]
    assert second.output == first.output == "rows of a"
    assert (second.steps.executed, second.steps.restored) == (0, 1)
    source = latest(reopen(), "second").step_results[0].source
    assert (source["workflow_id"], source["path"]) == ("first", "fetch")


@pytest.fixture(params=["memory", "file", "sqlite", "objects", "postgresql"])
def spec(request, tmp_path):
    """The description of a store of each kind."""
    return spec_of(request.param, request, tmp_path)


def large(source: str) -> str:
    calls.append(source)
    return source * 200_000


@workflow
def making(source: str = "x"):
    return (yield step("large").python(large, source).cache().checkpoint())


def test_every_store_finds_results_and_a_copy_outlives_the_run_that_made_it(spec):
    store = open_store(spec)
    try:
        engine = WorkflowEngine(store)
        engine.run_sync(making, workflow_id="first")
        assert engine.run_sync(making, workflow_id="second").steps.restored == 1
        asyncio.run(store.clear("first"))
        assert latest(store, "second").step_results[0].output == "x" * 200_000
        asyncio.run(store.clear_index())
        third = engine.run_sync(making, workflow_id="third")
        assert (third.output, third.steps.restored) == ("x" * 200_000, 1)
        assert calls == ["x"]
        assert {finding.severity for finding in asyncio.run(store.check())} == {"ok"}
    finally:
        if close := getattr(store, "close", None):
            close()


def test_all_members_of_a_map_wait_for_the_one_look_at_the_runs(spec):
    @workflow
    def mapping(count: int):
        return (yield step("each").map(fetch, [*range(count)], concurrency=8).cache().checkpoint())

    store = open_store(spec)
    try:
        WorkflowEngine(store).run_sync(mapping, count=8)
        looks: list[int] = []
        list_runs = store.list_runs
        store.list_runs = lambda: looks.append(1) or list_runs()
        result = WorkflowEngine(store).run_sync(mapping, count=10)
        assert result.output == [f"rows of {number}" for number in range(10)]
        assert (sorted(calls), len(looks)) == (sorted([*range(8), 8, 9]), 1)
    finally:
        if close := getattr(store, "close", None):
            close()


def test_a_member_whose_look_is_slower_than_that_of_another_takes_its_result_too():
    @workflow
    def mapping():
        return (yield step("each").map(fetch, ["a", "b"], concurrency=2).cache().checkpoint())

    store = MemoryCheckpointStore()
    WorkflowEngine(store).run_sync(mapping, options=RunOptions(no_cache=True))
    read_index, write_index, made = store.read_index, store.write_index, asyncio.Event()
    reads: list[str] = []

    async def read(name: str) -> bytes | None:
        reads.append(name)
        is_first, found = len(reads) == 1, await read_index(name)
        if is_first:
            await made.wait()
        return found

    async def write(name: str, content: bytes) -> None:
        await write_index(name, content)
        if name == "runs":
            made.set()

    store.read_index, store.write_index = read, write
    assert WorkflowEngine(store).run_sync(mapping).steps.restored == 2
    assert made.is_set()


@pytest.mark.parametrize("change", [{"source": "b"}, {"version": "2"}])
def test_another_call_runs(change):
    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(etl, workflow_id="first")
    assert engine.run_sync(etl, workflow_id="second", **change).steps.executed == 1


def test_a_result_that_was_recorded_without_cache_is_taken_too():
    engine = WorkflowEngine(MemoryCheckpointStore())

    @workflow
    def plain():
        return (yield step("other name").python(fetch, "a"))

    engine.run_sync(plain, workflow_id="plain")
    assert engine.run_sync(etl).output == "rows of a"
    assert calls == ["a"]


def test_a_run_recorded_after_the_index_was_made_is_found():
    engine = WorkflowEngine(MemoryCheckpointStore())
    for source in ("a", "b", "c"):
        engine.run_sync(etl, source=source)
    for source in ("c", "b", "a"):
        assert engine.run_sync(etl, source=source).steps.restored == 1
    assert calls == ["a", "b", "c"]


def test_an_older_result_than_max_age_is_not_taken():
    clock = FakeClock()
    engine = WorkflowEngine(MemoryCheckpointStore(), clock=clock)
    engine.run_sync(etl, workflow_id="first")
    clock.advance(3600)
    assert engine.run_sync(etl, workflow_id="taker", max_age=timedelta(hours=2)).steps.restored == 1
    clock.advance(3600 * 1.5)  # the copy is as old as what it was copied from
    assert engine.run_sync(etl, workflow_id="late", max_age=7200).steps.executed == 1


def test_no_cache_runs_the_step():
    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(etl)
    assert engine.run_sync(etl, options=RunOptions(no_cache=True)).steps.executed == 1


def test_failures_are_not_taken():
    @workflow
    def failing():
        with contextlib.suppress(Exception):
            yield step("fails").python(fails, 1).cache()

    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(failing)
    engine.run_sync(failing)
    assert calls == [1, 1]


def test_a_pruned_source_takes_nothing_from_those_that_relied_on_it(reopen):
    WorkflowEngine(reopen()).run_sync(etl, workflow_id="first")
    WorkflowEngine(reopen()).run_sync(etl, workflow_id="second")
    asyncio.run(reopen().clear("first"))
    assert WorkflowEngine(reopen()).resume_sync(etl, workflow_id="second").output == "rows of a"
    third = WorkflowEngine(reopen()).run_sync(etl, workflow_id="third")
    assert (third.output, third.steps.restored) == ("rows of a", 1)
    assert latest(reopen(), "third").step_results[0].source["workflow_id"] == "first"
    assert calls == ["a"]


# --- the world ----------------------------------------------------------------------------------------------------------


def summed(source: str) -> int:
    calls.append(source)
    return sum(map(int, Path(source).read_text().split()))


def written(target: str) -> str:
    calls.append(target)
    Path(target).write_text("report")
    return target


@workflow
def reading(source: str):
    return (yield step("sum").python(summed, source).reads(source).cache().checkpoint())


@workflow
def writing(target: str):
    made = step("write").python(written, target).cache()
    return (yield made.evidence(file_sha256(target)).checkpoint())


def test_a_file_that_changed_is_read_again_and_found_again_as_it_was(tmp_path):
    source = tmp_path / "numbers"
    source.write_text("1 2")
    engine = WorkflowEngine(MemoryCheckpointStore())
    assert engine.run_sync(reading, workflow_id="small", source=str(source)).output == 3
    source.write_text("10 20")
    assert engine.run_sync(reading, workflow_id="large", source=str(source)).output == 30
    source.write_text("1 2")
    again = engine.run_sync(reading, source=str(source))
    assert (again.output, again.steps.restored) == (3, 1)
    assert latest(engine.store, again.workflow_id).step_results[0].source["workflow_id"] == "small"


def test_a_result_whose_file_is_gone_is_not_taken(tmp_path):
    target = tmp_path / "report"
    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(writing, target=str(target))
    assert engine.run_sync(writing, target=str(target)).steps.restored == 1
    target.unlink()
    assert engine.run_sync(writing, target=str(target)).steps.executed == 1
    assert target.read_text() == "report"


def shell(script: str, **more: Any) -> Any:
    return step("shell").command(["sh", "-c", script], **more)


def is_enough(number: int = 0) -> bool:
    return True


def refuses(output: Any) -> Any:
    raise ValueError(output)


FAILS, LONG, BYTES, CUT = "exit 1", "seq 100", r"printf 'a\303\251\351%.0s' $(seq 50)", "printf '%.0sä' $(seq 50)"
both = command_exit(0), predicate(is_enough)


@pytest.mark.parametrize(
    ("recorded", "taking", "is_taken"),
    [
        (shell(FAILS).evidence(command_exit(1)), shell(FAILS), False),
        (shell(FAILS).evidence(command_exit(1)), shell(FAILS).evidence(command_exit(0)), False),
        (shell(FAILS).evidence(command_exit(1)), shell(FAILS).evidence(command_exit(1)), True),
        (shell(":").evidence(command_exit(0)), shell(":"), True),
        (shell(":"), shell(":").evidence(predicate(is_enough)), False),
        (shell(":").evidence(predicate(is_enough, 1)), shell(":").evidence(predicate(is_enough)), False),
        (shell(":").evidence(*both), shell(":").evidence(predicate(is_enough)), True),
        (shell(":").evidence(*both, require_all=False), shell(":").evidence(predicate(is_enough)), False),
        (shell(":").evidence(*both, require_all=False), shell(":").evidence(*both), False),
        (shell(":").evidence(*both, require_all=False), shell(":").evidence(*both, require_all=False), True),
        (shell(":").evidence(*both), shell(":").evidence(*both, min_verified=1), True),
        (shell(":").evidence(predicate(is_enough).transient()), shell(":").evidence(predicate(is_enough)), False),
        (shell(":").evidence(predicate(is_enough)), shell(":").evidence(predicate(is_enough).transient()), True),
        (shell(":").evidence(lambda output: both), shell(":").evidence(lambda output: both), True),
        (shell(":"), shell(":").evidence(refuses), False),
        (shell(LONG, max_output=20), shell(LONG), False),
        (shell(LONG, max_output=20), shell(LONG, max_output=27), False),
        (shell(LONG, max_output=20), shell(LONG, max_output=20), True),
        (shell(LONG, max_output=0), shell(LONG, max_output=0), True),
        (shell(LONG), shell(LONG, max_output=20), True),
        (shell(LONG + " >&2", max_output=20), shell(LONG + " >&2"), False),
        (shell(BYTES, max_output=20), shell(BYTES, max_output=400), False),
        *((shell(BYTES, max_output=limit), shell(BYTES, max_output=limit), True) for limit in range(19, 25)),
        *((shell(CUT, max_output=limit), shell(CUT, max_output=limit), True) for limit in range(19, 25)),
    ],
)
def test_a_result_is_taken_only_by_a_step_that_could_have_recorded_it(recorded, taking, is_taken):
    @workflow(name="commands")
    def running(takes: bool):
        return (yield (taking.cache() if takes else recorded).checkpoint())

    engine, empty = WorkflowEngine(MemoryCheckpointStore()), WorkflowEngine(MemoryCheckpointStore())
    assert engine.run_sync(running, takes=False).status == "completed"
    result, expected = engine.run_sync(running, takes=True), empty.run_sync(running, takes=True)
    assert result.steps.restored == is_taken
    assert (result.status, repr(result.error)) == (expected.status, repr(expected.error))
    assert is_taken or result.output == expected.output


def test_a_result_without_evidence_of_a_file_is_not_taken_by_a_step_that_demands_it(tmp_path):
    @workflow
    def making_only(target: str):
        return (yield step("write").python(written, target).checkpoint())

    target = tmp_path / "report"
    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(making_only, target=str(target))
    target.unlink()
    assert engine.run_sync(writing, target=str(target)).steps.executed == 1
    assert target.read_text() == "report"
    target.write_text("edited")
    assert engine.run_sync(writing, target=str(target)).steps.executed == 1
    assert target.read_text() == "report"


# --- the plan -----------------------------------------------------------------------------------------------------------


@workflow
def two(first: str = "x"):
    yield step("own").python(fetch, first).checkpoint()
    return (yield step("shared").python(fetch, "a").cache().checkpoint())


def test_the_plan_names_the_run_and_writes_nothing():
    engine = WorkflowEngine(store := MemoryCheckpointStore())
    crashing = CrashingStore(store, 2, is_after=True)
    with contextlib.suppress(SimulatedCrash):
        WorkflowEngine(crashing).run_sync(two, workflow_id="two")
    store.runs.owned.clear()
    engine.run_sync(etl, workflow_id="source")
    store.runs.index.clear()
    planned = in_sync(engine).plan(two, workflow_id="two").step("shared")
    assert planned.decision is Decision.CACHED
    assert "run source" in planned.reasons[-1].detail
    assert not store.runs.index
    fresh = in_sync(engine).plan(two, workflow_id="two", options=RunOptions(no_cache=True)).step("shared")
    assert fresh.decision is Decision.NEW
    calls.clear()
    assert engine.resume_sync(two, workflow_id="two").output == "rows of a"
    assert calls == []


def test_a_step_that_is_to_run_again_by_from_runs():
    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(etl, workflow_id="first")
    engine.run_sync(etl, workflow_id="second")
    engine.resume_sync(etl, workflow_id="second", options=RunOptions(from_step="fetch"))
    assert calls == ["a", "a"]


# --- the index ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"", b"\0\0\0", b'{"a', b"[1, 2]", b'{"k": [["run"]]}', b'{"k": 7}'])
def test_a_damaged_index_is_made_again(tmp_path, damage):
    engine = WorkflowEngine(FileCheckpointStore(tmp_path / "store"))
    engine.run_sync(etl, workflow_id="first")
    engine.run_sync(etl, workflow_id="second")
    for file in (tmp_path / "store" / "index").iterdir():
        file.write_bytes(damage)
    assert engine.run_sync(etl, workflow_id="third").steps.restored == 1
    assert engine.run_sync(etl, workflow_id="fourth").steps.restored == 1
    assert calls == ["a"]


def test_a_part_of_the_index_that_is_found_damaged_when_results_are_added_loses_no_older_ones(tmp_path):
    store = SqliteCheckpointStore(tmp_path / "runs.db")
    engine = WorkflowEngine(store)
    engine.run_sync(etl, workflow_id="older")
    engine.run_sync(etl, workflow_id="another source", source="b")
    engine.run_sync(etl, workflow_id="newer", options=RunOptions(no_cache=True))
    with contextlib.closing(sqlite3.connect(tmp_path / "runs.db")) as connection, connection:
        assert connection.execute("UPDATE result_index SET content = x'00' WHERE name <> 'runs'").rowcount == 1
    engine.run_sync(etl, workflow_id="adds the newer run", source="d")
    asyncio.run(store.clear("newer"))
    calls.clear()
    assert engine.run_sync(etl).steps.restored == 1
    assert calls == []
    store.close()


def test_an_index_that_is_lost_is_made_again():
    engine = WorkflowEngine(store := MemoryCheckpointStore())
    engine.run_sync(etl)
    engine.run_sync(etl)
    store.runs.index.clear()
    assert engine.run_sync(etl).steps.restored == 1


def test_an_index_of_many_removed_runs_is_made_again(monkeypatch):
    monkeypatch.setattr(result_cache, "_FEW_GONE", 2)
    engine = WorkflowEngine(store := MemoryCheckpointStore())
    for number in range(10):
        engine.run_sync(etl, workflow_id=f"run {number}", source=str(number))
    for number in range(8):
        asyncio.run(store.clear(f"run {number}"))
    assert engine.run_sync(etl, source="8").steps.restored == 1
    engine.run_sync(etl, source="new")
    named = b"".join(store.runs.index.values())
    assert b"run 8" in named
    assert b"run 0" not in named


def test_an_index_that_lies_is_not_believed():
    engine = WorkflowEngine(store := MemoryCheckpointStore())
    engine.run_sync(etl, workflow_id="first", source="a")
    engine.run_sync(etl, workflow_id="other", source="b")
    engine.run_sync(etl, workflow_id="taker", source="a")
    for name, content in [*store.runs.index.items()]:
        store.runs.index[name] = content.replace(b'"first"', b'"other"').replace(b'"taker"', b'"other"')
    assert engine.run_sync(etl, source="a").output == "rows of a"


def test_an_index_that_cannot_be_written_costs_time_only(tmp_path):
    store = FileCheckpointStore(tmp_path / "store")
    WorkflowEngine(store).run_sync(etl)
    (tmp_path / "store" / "index").write_text("a file in the way")
    assert WorkflowEngine(store).run_sync(etl).steps.restored == 1


def test_an_index_that_can_be_read_no_more_is_said(caplog):
    @workflow
    def both():
        yield step("a").python(fetch, "a").cache().checkpoint()
        yield step("b").python(fetch, "b").cache().checkpoint()

    store = MemoryCheckpointStore()
    WorkflowEngine(store).run_sync(both)

    async def fail(name: str) -> None:
        raise CheckpointStorageError("the server is gone")

    def heard(event: Any) -> None:
        if isinstance(event, events.StepRestored):
            store.read_index = fail

    assert WorkflowEngine(store, listeners=[heard]).run_sync(both).steps.restored == 1
    assert calls == ["a", "b", "b"]
    assert "step b: no result of another run is taken: the server is gone" in caplog.text


def test_nothing_is_taken_from_an_imported_run_before_a_person_has_resumed_it(tmp_path):
    """Anybody may have made its file, with results of functions that they know."""
    source = WorkflowEngine(MemoryCheckpointStore())
    source.run_sync(etl, workflow_id="made elsewhere")
    asyncio.run(export_run(source.store, "made elsewhere", tmp_path / "run"))
    store = MemoryCheckpointStore()
    asyncio.run(import_run(store, tmp_path / "run"))
    calls.clear()
    assert WorkflowEngine(store).run_sync(etl).steps.executed == 1


def returning(number: int) -> str:
    calls.append(number)
    return "the-token-of-another"


@workflow
def with_token(token: Secret[str] | None = None):
    return (yield step("call").python(returning, 1).cache())


def test_a_result_that_holds_a_secret_of_this_run_is_not_taken():
    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(with_token)
    result = engine.run_sync(with_token, token="the-token-of-another")
    assert calls == [1, 1]
    assert result.status == "failed", "as it does without .cache()"


def test_a_store_with_a_key_keeps_no_index(tmp_path):
    from flowckpt import FileCheckpointStore

    keys = KeyRing([new_key("encrypt")])
    engine = WorkflowEngine(FileCheckpointStore(tmp_path / "store", keys=keys))
    engine.run_sync(etl)
    assert engine.run_sync(etl).steps.restored == 1
    assert not (tmp_path / "store" / "index").exists()


class Minimal:
    """A third party's store of five methods, and a list."""

    def __init__(self) -> None:
        inner = MemoryCheckpointStore()
        for name in ("save", "load", "load_latest", "clear", "list_checkpoints", "list_runs", "acquire", "release"):
            setattr(self, name, getattr(inner, name))


def test_a_store_without_an_index_has_one_in_memory():
    engine = WorkflowEngine(Minimal())
    engine.run_sync(etl)
    assert engine.run_sync(etl).steps.restored == 1


# --- what is never taken ------------------------------------------------------------------------------------------------


def called(token: Any) -> str:
    calls.append(1)
    return "private"


@workflow
def secretive(token: Secret[str]):
    return (yield step("call").python(called, token).cache())


def test_a_call_with_a_secret_is_never_taken(caplog):
    """The record does not know which secret it was: another user's answer must not come."""
    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(secretive, token="first-users-token")
    with caplog.at_level(logging.WARNING, "flowckpt"):
        engine.run_sync(secretive, token="second-users-token")
    assert calls == [1, 1]
    assert "its arguments contain a secret" in caplog.text


def test_an_argument_that_cannot_be_compared_is_named(caplog):
    class Connection:
        def __init__(self) -> None:
            self.lock = threading.Lock()

    @workflow
    def connecting():
        return (yield step("ask").python(called, Connection()).cache())

    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(connecting)
    with caplog.at_level(logging.WARNING, "flowckpt"):
        engine.run_sync(connecting)
    assert calls == [1, 1]
    assert "argument 'token' cannot be compared" in caplog.text


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda made: made.cache().at_most_once(), "at_most_once"),
        (lambda made: made.at_most_once().cache(), "at_most_once"),
        (lambda made: made.rollback(fetch).cache(), "rollback"),
        (lambda made: made.cache().on_rerun(fetch), "on_rerun"),
        (lambda made: made.cache().ephemeral(), "ephemeral"),
        (lambda made: made.secret().cache(), "secret"),
        (lambda made: made.cache().cache(), "given twice"),
        (lambda made: made.cache(max_age=0), "max_age=0"),
        (lambda made: made.cache(max_age=float("nan")), "max_age=nan"),
        (lambda made: made.cache(max_age="1h"), "max_age='1h'"),
    ],
)
def test_a_mistake_is_refused(make, word):
    with pytest.raises(StepDefinitionError, match=word):
        make(step("fetch").python(fetch, 1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: step("s").workflow(etl).cache(),
        lambda: step("s").sleep(1).cache(),
        lambda: step("s").wait("go").cache(),
        lambda: step("s").map(etl, ["a"]).cache(),
    ],
)
def test_an_action_without_a_result_of_its_own_is_refused(make):
    @workflow
    def wrong():
        yield make()

    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(wrong)
    assert isinstance(result.error, StepDefinitionError)
    assert "cache" in str(result.error)


# --- the law of crashes: random programs, in a store that other programs have filled -------------------------------------


def work(number: int) -> tuple[int, str]:
    calls.append(number)
    return number, f"made {number}"


nodes = st.lists(
    st.tuples(st.sampled_from(["step", "map", "group"]), st.integers(0, 5), st.booleans(), st.booleans()),
    min_size=1,
    max_size=5,
)


def program(made: list[Any]) -> Any:
    @workflow(name="random")
    def random():
        outputs = []
        for index, (kind, number, is_cached, has_checkpoint) in enumerate(made):
            if kind == "map":
                each: Any = step(f"n{index}").map(work, [number, number + 1, number + 10])
            else:
                each = step(f"n{index}").python(work, number)
            each = each.cache() if is_cached else each
            each = each.checkpoint() if has_checkpoint else each
            outputs.append((yield parallel(each, step("else").python(work, index)) if kind == "group" else each))
        return outputs

    return random


@given(filled=nodes, made=nodes, crashes=st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=3))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_run_that_takes_results_and_dies_ends_as_one_in_an_empty_store(filled, made, crashes):
    expected = WorkflowEngine(MemoryCheckpointStore()).run_sync(program(made)).output
    store = MemoryCheckpointStore()
    WorkflowEngine(store).run_sync(program(filled), workflow_id="filled")
    durable: dict[str, Any] = {}
    for at, is_after in [*crashes, (10**9, False)]:
        crashing = CrashingStore(store, at, is_after=is_after)
        store.runs.owned.clear()
        calls.clear()
        before = latest(store, "run")
        with contextlib.suppress(SimulatedCrash):
            engine = WorkflowEngine(crashing)
            if before is None:
                result = engine.run_sync(program(made), workflow_id="run")
            else:
                planned = in_sync(WorkflowEngine(store)).plan(program(made), workflow_id="run")
                result = engine.resume_sync(program(made), workflow_id="run")
                if at == 10**9 and not planned.ends_at:
                    taken = {each.path for each in planned.steps if each.decision is Decision.CACHED}
                    assert taken <= {each.path for each in latest(store, "run").step_results if each.source}
        after = latest(store, "run")
        for each in () if after is None else after.step_results:
            if each.path in durable:
                assert (each.output, each.started_at, each.attempt) == durable[each.path], "durable is not done again"
            durable[each.path] = each.output, each.started_at, each.attempt
    assert result.status == "completed"
    assert result.output == expected
