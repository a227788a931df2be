"""Messages that were sent to a run, and lie in the mailbox of a later run that has the same id."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta

import attrs
import pytest

from flowckpt import FileCheckpointStore, MemoryCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.core.records.wait import WaitKind
from flowckpt.core.system.clock import SystemClock
from flowckpt.engine.run import context, inbox
from flowckpt.engine.run.inbox import Requests, make_cancel_request
from flowckpt.engine.session import session
from flowckpt.errors import SignalRefusedError
from flowckpt.execution.interrupts import Interrupts
from flowckpt.maintenance import copy_run, export_run, import_run
from flowckpt.maintenance.recovery import Pauses, find_due_runs, note_stale, read_stale_note
from flowckpt.stores import adapt, open_store
from flowckpt.stores.log.sealing.keys import AUTHENTICATE, KeyRing, new_key
from tests.cli.conftest import flowckpt  # noqa: F401 - a fixture

RUN = "nightly"
PROGRAM = """
from flowckpt import step, workflow

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")

@workflow
def release():
    found = yield step("review").approval("ship")
    yield step("publish").python(note, f"published by {found.by}")
    data = yield step("ask").wait("go")
    yield step("take").python(note, f"took {data}")
"""


@workflow
def release():
    found = yield step("review").approval("ship")
    data = yield step("ask").wait("go")
    return [found.by, data]


@pytest.fixture(params=["memory", "file", "sqlite", "postgresql", "objects"])
def store_kind(request):
    return request.param


@pytest.fixture
async def store(store_kind, spec):
    if store_kind == "memory":
        yield MemoryCheckpointStore()
        return
    opened = open_store(spec)
    yield opened
    opened.close()


async def started_twice(store):
    """Run, answer, clear and run again; put the answers of the first life back. Return engine and messages."""
    engine = WorkflowEngine(store)
    assert (await engine.run(release, workflow_id=RUN)).status == "suspended"
    await engine.approve(RUN, "ship", by="ann")
    await engine.signal(RUN, "go", data=1, signal_id="one")
    messages = list(await adapt(store).signals(RUN))
    await store.clear(RUN)
    assert (await engine.run(release, workflow_id=RUN)).status == "suspended"
    for each in messages:
        assert await adapt(store).send_signal(RUN, each)
    return engine, messages


async def test_a_later_run_of_the_same_id_takes_no_message_of_an_earlier_one(store, caplog):
    engine, messages = await started_twice(store)
    assert len(messages) == 2
    assert await find_due_runs(adapt(store), SystemClock()) == []
    plan = await engine.plan(release, workflow_id=RUN)
    assert "it was approved" not in str(plan)
    assert (await engine.resume_run(release, workflow_id=RUN)).status == "suspended"
    assert "messages of an earlier run with the same id are ignored" in caplog.text
    with pytest.raises(SignalRefusedError, match="'one' for an earlier run with the same id"):
        await engine.signal(RUN, "go", data=2, signal_id="one")
    await engine.approve(RUN, "ship", by="eve")
    await engine.signal(RUN, "go", data=2)
    assert (await engine.resume_run(release, workflow_id=RUN)).output == ["eve", 2]


@pytest.mark.parametrize("sent_to", ["this", "another", ""])
async def test_a_request_to_cancel_an_earlier_run_does_not_cancel_a_later_one(store, sent_to):
    engine, able = WorkflowEngine(store), adapt(store)
    await engine.run(release, workflow_id=RUN)
    newest = await store.load_latest(RUN)
    birth = newest.metadata["birth"]
    told = newest if sent_to == "this" else attrs.evolve(newest, metadata={**newest.metadata, "birth": sent_to})
    request = make_cancel_request("c", datetime.now(UTC), told, rolls_back=False)
    await able.send_signal(RUN, request)
    requests = Requests(able, RUN, birth, Interrupts())
    await requests.poll()
    while requests._looking is not None:  # a slow store answers a later look
        await requests._looking
        await requests.poll()
    assert bool(requests.interrupts.pending_signal) is (sent_to == "this")


@pytest.mark.parametrize("more_resumes", [0, 1])
async def test_a_request_to_cancel_that_was_followed_does_not_count_when_it_is_put_back(
    tmp_path, monkeypatch, more_resumes
):
    """The attack: a copy of the sealed request, in `signals/` again after the run was resumed."""
    for module in (session, context):
        monkeypatch.setattr(module, "LOOK_NS", 0)
    monkeypatch.setattr(inbox, "_MOMENT", 120.0)  # each look has its answer before the next step
    store = FileCheckpointStore(tmp_path / "store", keys=KeyRing([new_key(AUTHENTICATE)]))
    engine, kept = WorkflowEngine(store), []

    async def ask():
        if not kept:
            kept.append(make_cancel_request("old", datetime.now(UTC), await store.load_latest(RUN), rolls_back=False))
            await store.send_signal(RUN, kept[0])

    def fail():
        raise ConnectionError

    @workflow
    def steps():
        yield step("start").python(abs, -1).checkpoint()
        yield step("ask").python(ask)
        yield step("work").python(abs, -2)
        yield step("fail").python(fail)

    assert (await engine.run(steps, workflow_id=RUN)).status == "cancelled"
    assert list(await store.signals(RUN)) == []
    for _ in range(1 + more_resumes):
        assert (await engine.resume_run(steps, workflow_id=RUN)).status == "failed"
    assert await store.send_signal(RUN, kept[0])
    assert (await engine.resume_run(steps, workflow_id=RUN)).status == "failed"
    behind = datetime.now(UTC) - timedelta(hours=1)  # of a machine whose clock is an hour behind
    await store.send_signal(RUN, make_cancel_request("new", behind, await store.load_latest(RUN), rolls_back=False))
    assert (await engine.resume_run(steps, workflow_id=RUN)).status == "cancelled"
    fork = await engine.fork(RUN, workflow=steps, new_id="forked")
    assert "ended" not in (await store.load_latest(fork.workflow_id)).metadata
    store.close()


async def test_what_recoverers_noted_of_an_earlier_run_does_not_hold_up_a_later_one(store):
    engine = WorkflowEngine(store)
    able, clock = adapt(store), SystemClock()
    await engine.run(release, workflow_id=RUN)
    await engine.approve(RUN, "ship", by="ann")
    [due] = await find_due_runs(able, clock)
    assert await note_stale(able, clock, due.info, 10, "the code changed")
    assert await read_stale_note(able, due.info) == "the code changed"
    pauses = Pauses(able, clock)
    await pauses.begin(due)
    assert not await Pauses(able, clock).may_try(due)
    kept = [each for each in await able.signals(RUN) if each.kind in (WaitKind.RECOVERY, WaitKind.STALE)]
    assert len(kept) == 2
    await store.clear(RUN)
    await engine.run(release, workflow_id=RUN)
    for each in kept:
        await able.send_signal(RUN, each)
    await engine.approve(RUN, "ship", by="eve")
    [due] = await find_due_runs(able, clock)
    assert await read_stale_note(able, due.info) == ""
    assert await Pauses(able, clock).may_try(due)
    assert await note_stale(able, clock, due.info, 10, "the code changed")  # news, although the attempt is the same


async def test_every_new_run_has_a_birth_of_its_own_and_a_copy_keeps_it(store, tmp_path):
    engine = WorkflowEngine(store)
    await engine.run(release, workflow_id=RUN)
    await engine.fork(RUN, workflow=release, new_id="forked")
    await copy_run(store, store, RUN, new_id="copied")
    await export_run(store, RUN, tmp_path / "run.jsonl")
    assert b'"birth"' not in (tmp_path / "run.jsonl").read_bytes()
    for new_id in ("imported", "again"):
        await import_run(store, tmp_path / "run.jsonl", workflow_id=new_id)
    births = {
        run: (await store.load_latest(run)).metadata["birth"] for run in (RUN, "forked", "copied", "imported", "again")
    }
    assert births.pop("copied") == births[RUN]
    assert len({*births.values()}) == 4


@pytest.mark.parametrize("key", ["", "key"])
def test_answers_that_were_put_back_after_a_clear_publish_nothing(flowckpt, tmp_path, key):  # noqa: F811
    """The attack: a copy of `signals/` from before the clear, in a store that may be sealed."""
    (tmp_path / "release.py").write_text(PROGRAM)
    sealed = {"FLOWCKPT_KEY_FILE": key} if key else {}
    if key:
        flowckpt("store", "key", "new", "key").expect(0)
    flowckpt("run", "release.py:release", "--id", RUN, **sealed).expect(3)
    flowckpt("approve", RUN, "ship", "--by", "ann", **sealed).expect(0)
    flowckpt("signal", RUN, "go", "--data", "1", **sealed).expect(0)
    signals = tmp_path / ".flowckpt" / "runs" / RUN / "signals"
    shutil.copytree(signals, tmp_path / "kept")
    flowckpt("store", "clear", RUN, "--yes", **sealed).expect(0)
    flowckpt("run", "release.py:release", "--id", RUN, **sealed).expect(3)
    shutil.copytree(tmp_path / "kept", signals, dirs_exist_ok=True)
    flowckpt("recover", **sealed).expect(0)
    said = flowckpt("resume", RUN, **sealed).expect(3)
    assert "earlier run" in said.err
    assert not (tmp_path / "log").exists()
    assert flowckpt("show", RUN, "--json", **sealed).expect(0).document["status"] == "suspended"
