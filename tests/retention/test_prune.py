"""Whole runs that go, and what is left of those that stay."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import timedelta

import attrs
import pytest

from flowckpt import MemoryCheckpointStore, WorkflowEngine, prune, step, workflow
from flowckpt.core.records import Status
from flowckpt.errors import CheckpointCorruptedError, CheckpointNotFoundError, FencedError, RunLockedError, SettingError
from flowckpt.maintenance.prune import prune_checkpoints
from flowckpt.testing import FakeClock

DAY = 86_400


def one():
    return 1


def fail():
    raise ValueError("no")


@workflow
def good():
    return (yield step("one").python(one).checkpoint())


@workflow
def other():
    return (yield step("one").python(one).checkpoint())


@workflow
def bad():
    yield step("one").python(one).checkpoint()
    yield step("fail").python(fail)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def store(reopen, clock):
    """Six runs, a day apart: three good ones, one other, two that failed."""
    found = reopen()
    engine = WorkflowEngine(found, clock=clock)
    for number, which in enumerate((good, bad, good, other, good, bad), 1):
        engine.run_sync(which, workflow_id=f"{which.name}-{number}")
        clock.advance(DAY)
    return found


def pruned(store, clock, **how):
    report = asyncio.run(prune(store, clock=clock, **how))
    return [run.workflow_id for run in report.runs]


def left(store):
    return sorted(info.workflow_id for info in asyncio.run(store.list_runs()))


ALL = ["bad-2", "bad-6", "good-1", "good-3", "good-5", "other-4"]


def test_without_a_criterion_no_run_goes(store, clock):
    assert pruned(store, clock) == []
    assert left(store) == ALL


def test_the_newest_runs_of_each_workflow_stay(store, clock):
    assert pruned(store, clock, keep=1) == ["good-3", "good-1"]
    assert left(store) == ["bad-2", "bad-6", "good-5", "other-4"]


def test_a_run_that_can_be_resumed_never_goes_unless_its_status_is_named(store, clock):
    assert pruned(store, clock, older_than=0) == ["good-5", "other-4", "good-3", "good-1"]
    assert left(store) == ["bad-2", "bad-6"]
    assert pruned(store, clock, keep=1, statuses=["failed"]) == ["bad-2"]


def test_all_that_is_said_must_hold(store, clock):
    assert pruned(store, clock, older_than="3d12h", keep=1) == ["good-3", "good-1"]
    assert pruned(store, clock, older_than="60d", keep=0) == []
    assert pruned(store, clock, keep=0, workflow="other") == ["other-4"]


def test_a_dry_run_says_what_a_real_one_does(store, clock):
    planned = asyncio.run(prune(store, clock=clock, keep=1, is_dry_run=True))
    assert left(store) == ALL
    assert planned.removed == 2
    assert planned.removed_bytes > 100
    done = asyncio.run(prune(store, clock=clock, keep=1))
    assert done.runs == planned.runs
    assert asyncio.run(prune(store, clock=clock, keep=1)).removed == 0


def test_a_pinned_run_stays_and_is_told(store, clock):
    asyncio.run(store.pin("good-1", 2))
    for is_dry_run in (True, False):
        report = asyncio.run(prune(store, clock=clock, keep=0, is_dry_run=is_dry_run))
        assert report.skipped == {"good-1": "it is pinned"}
        assert "good-1" not in [run.workflow_id for run in report.runs]
    asyncio.run(store.unpin("good-1", 2))
    assert pruned(store, clock, keep=0) == ["good-1"]


def test_a_run_that_somebody_owns_stays(store, clock):
    """Also where its newest checkpoint says that it has ended: it is being resumed."""
    asyncio.run(store.acquire("good-1"))
    assert "good-1" not in pruned(store, clock, keep=0, statuses=["completed", "failed", "crashed"])
    assert left(store) == ["good-1"]


def test_a_run_that_was_resumed_while_others_were_removed_stays(store, clock):
    plain, is_first = store.clear_unchanged, True

    async def clear_unchanged(runs):
        nonlocal is_first
        if is_first:
            is_first = False
            lease = await store.acquire("bad-2")
            data = lease.latest
            await store.save("bad-2", attrs.evolve(data, attempt=lease.attempt, sequence=lease.last_sequence + 1))
            await store.release("bad-2")
        return await plain(runs)

    store.clear_unchanged = clear_unchanged
    report = asyncio.run(prune(store, clock=clock, keep=0, statuses=["failed"]))
    del store.clear_unchanged
    assert [run.workflow_id for run in report.runs] == ["bad-6"]
    assert report.skipped == {"bad-2": "it has changed meanwhile"}


@pytest.mark.parametrize(
    ("how", "setting"),
    [
        ({"keep": -1}, "keep"),
        ({"keep": 1.5}, "keep"),
        ({"keep": True}, "keep"),
        ({"older_than": "soon"}, "older_than"),
        ({"keep": 0, "statuses": ["running"]}, "statuses"),
        ({"keep": 0, "statuses": ["gone"]}, "statuses"),
    ],
    ids=repr,
)
def test_what_cannot_be_is_refused(how, setting):
    with pytest.raises(SettingError) as caught:
        asyncio.run(prune(MemoryCheckpointStore(), **how))
    assert caught.value.setting == setting


def test_runs_are_handed_over_one_by_one_where_there_may_be_very_many(store, clock):
    seen = []
    report = asyncio.run(prune(store, clock=clock, keep=0, on_run=seen.append))
    assert (len(seen), report.runs, report.removed) == (4, [], 4)


def test_the_checkpoints_of_one_run_go(store, clock):
    sequences, freed = asyncio.run(prune_checkpoints(store, "good-1", keep=1, is_dry_run=True))
    assert (sequences, freed) == ([1, 2], 0)
    asyncio.run(store.pin("good-1", 1))
    sequences, _ = asyncio.run(prune_checkpoints(store, "good-1", keep=1))
    assert sequences == [2]
    assert [each.sequence for each in asyncio.run(store.list_checkpoints("good-1"))] == [3, 1]
    assert asyncio.run(store.load_latest("good-1")).output == 1
    with pytest.raises(CheckpointNotFoundError):
        asyncio.run(prune_checkpoints(store, "no run", keep=1))
    asyncio.run(store.acquire("good-3"))
    with pytest.raises((RunLockedError, FencedError)):
        asyncio.run(prune_checkpoints(store, "good-3", keep=1))


def test_what_was_removed_from_the_runs_that_stay_is_freed(store, clock):
    asyncio.run(store.delete_sequences("bad-2", [1]))
    before = asyncio.run(store.load_latest("bad-2"))
    report = asyncio.run(prune(store, clock=clock))
    assert report.compacted == 1
    assert report.skipped == {}
    assert [each.sequence for each in asyncio.run(store.list_checkpoints("bad-2"))] == [3, 2]
    assert asyncio.run(store.load_latest("bad-2")) == before
    assert asyncio.run(prune(store, clock=clock)).compacted == 0


class OnlyListing:
    """A third party's store that can list its runs, and no more."""

    def __init__(self, inner):
        names = ("save", "load", "load_latest", "clear", "list_checkpoints", "list_runs", "describe_run")
        for name in names:
            setattr(self, name, getattr(inner, name))


def test_a_store_that_can_only_list_is_pruned_too(clock):
    inner = MemoryCheckpointStore()
    for name in ("a", "b"):
        WorkflowEngine(inner, clock=clock).run_sync(good, workflow_id=name)
        clock.advance(DAY)
    assert pruned(OnlyListing(inner), clock, keep=1) == ["a"]
    assert left(inner) == ["b"]
    with pytest.raises(SettingError):
        asyncio.run(prune(object(), keep=1))


def test_statuses_may_be_those_of_the_enum_and_ages_timedeltas(store, clock):
    assert pruned(store, clock, older_than=timedelta(days=2), statuses={Status.FAILED}) == ["bad-2"]


def test_a_checkpoint_goes_only_if_all_that_is_said_holds_of_it(store, clock):
    def gone(**how):
        return asyncio.run(prune_checkpoints(store, "bad-2", clock=clock, is_dry_run=True, **how))[0]

    assert gone(keep=1) == gone(older_than="1h") == gone(keep=1, older_than="1d", max_bytes=1) == [1, 2]
    assert gone(keep=2, older_than="1h") == gone(keep=2) == [1]
    assert gone(keep=1, older_than="30d") == gone(keep=1, max_bytes=10**6) == gone() == []


@pytest.mark.parametrize(
    ("how", "setting"),
    [({"keep": 0}, "keep"), ({"older_than": "soon"}, "older_than"), ({"max_bytes": 0}, "max_bytes")],
    ids=["keep", "age", "size"],
)
def test_a_condition_for_checkpoints_that_cannot_be_is_refused(how, setting):
    with pytest.raises(SettingError) as caught:
        asyncio.run(prune_checkpoints(MemoryCheckpointStore(), "run", **how))
    assert caught.value.setting == setting


def test_a_list_of_runs_is_gone_on_with_from_any_run_by_whoever_asks(store, reopen):
    async def main():
        pages = [await store.page_runs(None, 2) for _ in range(2)]
        assert pages[0] == pages[1]
        for again in (store, store, reopen()):  # the last one never made the first page
            page = await again.page_runs(pages[0][-1], 3)
            assert [info.workflow_id for info in page] == ["other-4", "good-3", "bad-2"]
        assert [info.workflow_id for info in await again.page_runs(page[-1], 3)] == ["good-1"]
        assert not await again.page_runs((await again.page_runs(page[-1], 3))[-1], 3)

    asyncio.run(main())


# --- what is damaged decides nothing ---------------------------------------------------------------------------------


def change(place, workflow_id, column, before, after):
    """Change what a list reads of a run: bytes of the last line of its file, or a column of its row."""
    if place.suffix == ".db":
        with sqlite3.connect(place) as database:
            (value,) = database.execute(f"SELECT {column} FROM runs WHERE workflow_id = ?", (workflow_id,)).fetchone()
            changed = str(value).replace(before, after)
            assert changed != str(value)
            database.execute(f"UPDATE runs SET {column} = ? WHERE workflow_id = ?", (changed, workflow_id))
        database.close()
        return
    (segment,) = (file for file in place.rglob("*.jsonl") if f'"{workflow_id}"' in file.read_text().partition("\n")[0])
    lines = segment.read_bytes().splitlines(keepends=True)
    name = {"updated_at": "saved_at"}.get(column, column).encode()
    which = -1 if column == "updated_at" else next(index for index, line in enumerate(lines) if b'"saved_at":"' in line)
    start = lines[which].index(name + b'":"' if which == -1 else b'saved_at":"')
    end = lines[which].index(b'",', start)
    changed = lines[which][start:end].replace(before.encode(), after.encode())
    assert changed != lines[which][start:end]
    lines[which] = lines[which][:start] + changed + lines[which][end:]
    segment.write_bytes(b"".join(lines))


@pytest.fixture
def place(store, tmp_path):
    if isinstance(store, MemoryCheckpointStore):
        pytest.skip("nothing of it lies anywhere")
    return tmp_path / ("store.db" if (tmp_path / "store.db").exists() else "store")


def test_a_changed_year_of_a_fresh_run_does_not_remove_it(store, clock, place, reopen):
    year = clock.now().year
    change(place, "good-5", "updated_at", f"{year}-", f"{year - 5}-")
    report = asyncio.run(prune(reopen(), clock=clock, older_than="30d"))
    assert report.runs == []
    assert "good-5" in report.skipped
    assert report.unreadable == ["good-5"]
    assert "good-5" in left(reopen())


def test_a_dry_run_does_not_promise_to_remove_what_is_damaged(store, clock, place, reopen):
    year = clock.now().year
    change(place, "good-5", "updated_at", f"{year}-", f"{year - 5}-")
    report = asyncio.run(prune(reopen(), clock=clock, older_than="30d", is_dry_run=True))
    assert (report.runs, report.unreadable) == ([], ["good-5"])


def test_a_run_that_looks_newer_than_it_is_does_not_take_the_place_of_the_newest(store, clock, place, reopen):
    year = clock.now().year
    change(place, "good-1", "started_at", f"{year}-", f"{year + 5}-")
    report = asyncio.run(prune(reopen(), clock=clock, keep=1))
    assert [run.workflow_id for run in report.runs] == ["good-3"]
    assert report.unreadable == ["good-1"]
    assert left(reopen()) == ["bad-2", "bad-6", "good-1", "good-5", "other-4"]


@pytest.mark.parametrize(
    "column, before, after",
    [("updated_at", "-", "+"), ("started_at", "20", "21"), ("status", "completed", "failed"), ("steps", "1", "0")],
)
def test_the_check_of_a_database_finds_a_run_whose_row_does_not_say_what_its_record_says(
    store, place, reopen, column, before, after
):
    if place.suffix != ".db":
        pytest.skip("a file store has no row of a run")
    change(place, "good-5", column, before, after)
    assert [finding.severity for finding in asyncio.run(reopen().check("good-5"))] == ["corrupt"]
    assert [each.workflow_id for each in asyncio.run(reopen().check()) if each.severity == "corrupt"] == ["good-5"]


@pytest.mark.parametrize("statement", ["saved_at = replace(saved_at, '20', '10')", "reason = 'trigger'"])
def test_a_changed_row_of_a_checkpoint_does_not_remove_it(store, clock, place, reopen, statement):
    if place.suffix != ".db":
        pytest.skip("each line of a file store is proved when it is listed")
    with sqlite3.connect(place) as database:
        database.execute(f"UPDATE checkpoints SET {statement} WHERE sequence = 2")
    database.close()
    with pytest.raises(CheckpointCorruptedError):
        asyncio.run(prune_checkpoints(reopen(), "good-1", older_than="1s", clock=clock))
    assert len(asyncio.run(reopen().list_checkpoints("good-1"))) == 3
