"""A run that moves is the same run: byte for byte, in every store, and it continues there."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore
from runs import done, exported, history

from flowckpt import FileCheckpointStore, MemoryCheckpointStore, RunOptions, WorkflowEngine, in_sync, step, workflow
from flowckpt.core.records import CheckpointData
from flowckpt.errors import (
    CheckpointNotFoundError,
    FencedError,
    FlowckptError,
    RunExistsError,
    RunLockedError,
    StoreAbilityError,
)
from flowckpt.maintenance import copy_run, export_documents, export_run, import_run
from flowckpt.stores import ObjectCheckpointStore, PostgresCheckpointStore, SqliteCheckpointStore
from flowckpt.testing.contract import EXACT, checkpoint, results


@pytest.fixture
def stores(tmp_path):
    made = {
        "memory": MemoryCheckpointStore(),
        "file": FileCheckpointStore(tmp_path / "store"),
        "sqlite": SqliteCheckpointStore(tmp_path / "store.db"),
        "objects": ObjectCheckpointStore(MemoryStore()),
    }
    yield made
    for store in made.values():
        if hasattr(store, "close"):
            store.close()


def held(data, imported):
    """A checkpoint as an import leaves it: the mark that holds it is new, and the birth of another run."""
    if data is None:
        return None
    birth = imported.metadata["birth"]
    assert len(birth) == 32
    return attrs.evolve(data, metadata={**data.metadata, "imported": True, "birth": birth})


@pytest.mark.parametrize("there", ["memory", "file", "sqlite", "objects"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_run_comes_out_of_a_store_as_it_went_in_by_way_of_a_file(source, stores, tmp_path, there, suffix):
    file = tmp_path / f"run{suffix}"
    written = done(export_run(source, "run", file))
    assert (written.attempts, written.checkpoints, written.steps, written.checkpoint_id) == (3, 9, 3, "c11")
    taken = done(import_run(stores[there], file))
    assert taken.is_new
    assert (taken.workflow_id, taken.attempts, taken.checkpoints, taken.steps) == ("run", 3, 9, 3)
    assert exported(stores[there]) == exported(source)
    for attempt in (1, 2, 3, 4):
        there_now = done(stores[there].load_attempt("run", attempt))
        assert there_now == held(done(source.load_attempt("run", attempt)), there_now)
        assert [attrs.evolve(ref, size=0) for ref in done(stores[there].list_attempt("run", attempt))] == [
            attrs.evolve(ref, size=0) for ref in done(source.list_attempt("run", attempt))
        ]
    assert [attrs.evolve(ref, size=0) for ref in done(stores[there].list_checkpoints("run"))] == [
        attrs.evolve(ref, size=0) for ref in done(source.list_checkpoints("run"))
    ]
    assert all(finding.severity == "ok" for finding in done(stores[there].check()))


def test_a_run_goes_from_store_to_store_and_back_and_its_bytes_are_the_same(source, stores, tmp_path, postgres):
    first = exported(source)
    server = PostgresCheckpointStore(postgres.url(), schema="moving", allow_unsafe=True)
    try:
        way = [
            stores["file"],
            stores["sqlite"],
            stores["objects"],
            server,
            FileCheckpointStore(tmp_path / "back"),
            MemoryCheckpointStore(),
        ]
        before = source
        for store in way:
            assert done(copy_run(before, store, "run")).is_new
            assert exported(store) == first
            before = store
        assert exported(source) == first
    finally:
        server.close()
        postgres.execute("DROP SCHEMA moving CASCADE")


def test_the_same_run_makes_the_same_file(source, stores, tmp_path):
    done(copy_run(source, stores["sqlite"], "run"))
    for store, name in ((source, "a.gz"), (stores["sqlite"], "b.gz")):
        done(export_run(store, "run", tmp_path / name))
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


@pytest.mark.parametrize("there", ["memory", "file", "sqlite", "objects"])
def test_a_run_that_is_there_already_is_left_as_it_is_and_another_one_is_refused(source, stores, tmp_path, there):
    target = stores[there]
    done(export_run(source, "run", tmp_path / "run"))
    assert done(import_run(target, tmp_path / "run")).is_new
    assert not done(import_run(target, tmp_path / "run")).is_new
    assert not done(copy_run(source, target, "run")).is_new
    assert done(copy_run(source, target, "run", new_id="other")).is_new
    assert exported(target, "other") == exported(source)
    lease = done(target.acquire("run"))
    assert lease.attempt == 5
    done(target.save("run", attrs.evolve(lease.latest, sequence=12, attempt=5)))
    done(target.release("run"))
    after = exported(target)
    with pytest.raises(RunExistsError):
        done(import_run(target, tmp_path / "run"))
    with pytest.raises(RunExistsError):
        done(copy_run(source, target, "run"))
    assert exported(target) == after


@pytest.mark.parametrize("there", ["file", "sqlite"])
def test_fencing_goes_on_from_the_newest_attempt(source, stores, there):
    target = stores[there]
    done(copy_run(source, target, "run"))
    with pytest.raises(FencedError):
        done(target.save("run", checkpoint(12, attempt=4)))
    assert done(target.acquire("run")).attempt == 5
    with pytest.raises(RunLockedError):
        done(type(target)(target.path).acquire("run"))


def test_a_live_run_is_exported_as_of_its_last_checkpoint_and_says_so(tmp_path):
    store = FileCheckpointStore(tmp_path / "store")
    done(store.acquire("live"))
    done(store.save("live", checkpoint(1, results("a"))))
    written = done(export_run(store, "live", tmp_path / "live"))
    assert written.owner is not None
    assert written.checkpoint_id == "c1"
    done(store.save("live", checkpoint(2, results("a", "b"))))
    target = MemoryCheckpointStore()
    assert done(import_run(target, tmp_path / "live")).steps == 1
    store.close()


def test_what_a_fenced_writer_left_unacknowledged_is_not_exported(tmp_path):
    asleep, awake = FileCheckpointStore(tmp_path / "s"), FileCheckpointStore(tmp_path / "s")
    done(asleep.save("run", checkpoint(1, results("a"))))
    done(awake.acquire("run", take_over=True))
    with pytest.raises(FencedError):
        done(asleep.save("run", checkpoint(2, results("a", "lost"))))
    done(awake.save("run", checkpoint(2, results("a", "kept"), attempt=2)))
    done(export_run(awake, "run", tmp_path / "file"))
    target = SqliteCheckpointStore(tmp_path / "t.db")
    done(import_run(target, tmp_path / "file"))
    assert [data.sequence for data in done(target.read_attempt("run", 1))] == [1]
    assert [result.output for result in done(target.load_latest("run")).step_results] == ["a", "kept"]
    target.close()
    asleep.close()
    awake.close()


@pytest.mark.parametrize("kind", ["memory", "file", "sqlite", "objects"])
def test_what_was_left_behind_is_not_the_end_of_a_copy_where_the_checkpoints_of_who_left_it_were_deleted(stores, kind):
    source, target = stores[kind], MemoryCheckpointStore()
    for number in (1, 2, 3):
        done(source.save("run", checkpoint(number, results(*range(number)))))
    done(source.release("run"))
    lease = done(source.acquire("run"))
    done(source.save("run", checkpoint(4, results(0, "other"), attempt=lease.attempt)))
    assert done(source.delete_checkpoint("run", "c4"))
    done(source.release("run"))
    latest = done(source.load_latest("run"))
    assert latest.sequence == 1
    done(copy_run(source, target, "run"))
    assert done(target.load_latest("run")) == latest


def test_a_run_that_is_not_there_is_not_exported(source, tmp_path):
    for work in (export_run(source, "none", tmp_path / "x"), copy_run(source, MemoryCheckpointStore(), "none")):
        with pytest.raises(CheckpointNotFoundError):
            done(work)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_is_told_so_and_nothing_falls_back(source, tmp_path):
    class Plain:
        save = load = load_latest = clear = list_checkpoints = MemoryCheckpointStore.load_latest

    with pytest.raises(StoreAbilityError, match="Ability.RECEIVE"):
        done(copy_run(source, Plain(), "run"))
    with pytest.raises(StoreAbilityError, match="Ability.ATTEMPTS"):
        done(export_run(Plain(), "run", tmp_path / "x"))


@pytest.mark.parametrize("number", range(1, 10))
def test_the_document_of_each_checkpoint_makes_a_run_that_stands_there(source, stores, tmp_path, number):
    done(export_documents(source, "run", tmp_path / "git"))
    files = sorted((tmp_path / "git").iterdir())
    assert [file.name[:6] for file in files] == [f"{data.sequence:06d}" for data in history()]
    taken = done(import_run(stores["sqlite"], files[number - 1], workflow_id="new"))
    assert (taken.workflow_id, taken.source_id, taken.is_new) == ("new", "", True)
    found = done(stores["sqlite"].load_latest("new"))
    wanted = held(history()[number - 1], found)
    assert attrs.evolve(found, step_results=list(found.step_results)) == wanted
    recorded = next(
        data for data in done(source.read_attempt("run", wanted.attempt)) if data.sequence == wanted.sequence
    )
    assert found.step_results.chain == recorded.step_results.chain
    assert not done(import_run(stores["sqlite"], files[number - 1], workflow_id="new")).is_new


# --- real runs -------------------------------------------------------------------------------------------------------

world = {"ready": False}


def fetch(limit: int) -> list[int]:
    return list(range(limit))


def check(rows: list[int]) -> int:
    if not world["ready"]:
        raise ValueError("not yet")
    return len(rows)


@workflow
def moving(limit: int = 3):
    rows = yield step("fetch").python(fetch, limit).checkpoint()
    return (yield step("check").python(check, rows).checkpoint())


@pytest.mark.parametrize("there", ["memory", "file", "sqlite", "objects"])
def test_a_failed_run_is_resumed_where_it_was_brought_and_the_source_stays(stores, tmp_path, there):
    world["ready"] = False
    home = FileCheckpointStore(tmp_path / "home")
    WorkflowEngine(home).run_sync(moving, workflow_id="run", limit=4)
    before = exported(home)
    done(copy_run(home, stores[there], "run"))
    world["ready"] = True
    result = WorkflowEngine(stores[there]).resume_sync(moving, workflow_id="run")
    assert (result.output, result.steps.executed, result.steps.restored, result.attempt) == (4, 1, 1, 2)
    assert exported(home) == before
    assert WorkflowEngine(home).resume_sync(moving, workflow_id="run").output == 4


def test_a_rollback_and_a_fork_work_on_what_was_brought(stores, tmp_path):
    world["ready"] = True
    home = FileCheckpointStore(tmp_path / "home")
    WorkflowEngine(home).run_sync(moving, workflow_id="run")
    done(copy_run(home, stores["sqlite"], "run"))
    engine = WorkflowEngine(stores["sqlite"])
    in_sync(engine).rollback("run", "fetch")
    assert engine.resume_sync(moving, workflow_id="run").steps.restored == 1
    in_sync(engine).fork("run", new_id="forked", from_step="check")
    assert engine.resume_sync(moving, workflow_id="forked", options=RunOptions(force=True)).output == 3
    back = MemoryCheckpointStore()
    for run in ("run", "forked"):
        done(copy_run(stores["sqlite"], back, run))
        assert exported(back, run) == exported(stores["sqlite"], run)


# --- the law ---------------------------------------------------------------------------------------------------------

VALUES = [*(value for value in EXACT if value == value), *["x" * 70_000] * 3, ["y" * 70_000]]
SAVES = st.lists(
    st.tuples(
        st.sampled_from(["save", "save", "save", "save", "again", "delete"]),
        st.sampled_from(["one", "two", "three"]),
        st.lists(st.sampled_from(range(len(VALUES))), max_size=3),
        st.integers(0, 3),
        st.sampled_from(["{}", "large", "snapshot", "output"]),
    ),
    max_size=12,
)


@settings(
    max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)
@given(SAVES)
def test_whatever_was_saved_and_deleted_a_copy_of_a_copy_is_the_same(tmp_path_factory, saves):
    place = tmp_path_factory.mktemp("law")
    stores = [
        MemoryCheckpointStore(),
        FileCheckpointStore(place / "store"),
        SqliteCheckpointStore(place / "store.db"),
        ObjectCheckpointStore(MemoryStore()),
    ]
    files = []
    for origin in stores:
        attempt, sequence, held = 1, 0, []
        for act, name, outputs, back, what in saves:
            if act == "delete":
                done(origin.delete_checkpoint("run", name))
                continue
            if act == "again":
                done(origin.release("run"))
                attempt = done(origin.acquire("run")).attempt
                held = held[: max(0, len(held) - back)]
            held = [*held, *results(*(VALUES[index] for index in outputs), first=len(held) + 1)]
            sequence += 1
            fields = {"inputs": {"x": "z" * 70_000}} if what == "large" else {}
            fields |= {what: VALUES[-1]} if what in ("snapshot", "output") else {}
            data = checkpoint(sequence, held, checkpoint_id=name, attempt=attempt, **fields)
            try:
                done(origin.save("run", data))
            except FlowckptError:
                break
        done(origin.release("run"))
        try:
            files.append(exported(origin))
        except CheckpointNotFoundError:
            files.append(b"")
            continue
        before, name = origin, "run"
        for number, target in enumerate([*stores, *stores]):
            done(copy_run(before, target, name, new_id=f"{number}-{id(origin)}"))
            before, name = target, f"{number}-{id(origin)}"
            assert exported(target, name) == files[-1]
        (place / "file").write_bytes(exported(before, name))
        assert not done(import_run(before, place / "file", workflow_id=name)).is_new
    for store in stores[1:]:
        store.close()
    assert len(set(files)) == 1, "the stores do not agree about the run itself"


# --- size ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["copy", "export", "import"])
def test_a_run_of_many_large_values_never_lies_in_memory(tmp_path, way):
    value, count = 1 << 20, 40
    home, there = FileCheckpointStore(tmp_path / "home"), SqliteCheckpointStore(tmp_path / "there.db")
    held: list[CheckpointData] = []
    for number in range(count):
        latest = done(home.load_latest("run"))
        before = list(latest.step_results) if latest else []
        made = results(chr(97 + number % 26) * value + str(number), first=number + 1)
        done(home.save("run", checkpoint(number + 1, [*before, *made])))
    home.close()
    del held, before, made, latest
    done(export_run(home, "run", tmp_path / "run"))
    assert (tmp_path / "run").stat().st_size > count * value
    tracemalloc.start()
    try:
        if way == "copy":
            done(copy_run(home, there, "run"))
        elif way == "export":
            done(export_run(home, "run", tmp_path / "again"))
        else:
            done(import_run(there, tmp_path / "run"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * value, f"{peak / value:.0f} values at once"
    if way != "export":
        assert exported(there) == Path(tmp_path / "run").read_bytes()
    there.close()
