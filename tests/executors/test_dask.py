"""Steps on a real Dask cluster of two worker processes, which the tests of this file share."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import far_steps
import psutil
import pytest
from far_processes import gone, seen

from flowckpt import DaskExecutor, MemoryCheckpointStore, RunOptions, WorkflowEngine, step, workflow
from flowckpt.errors import ExecutorError, StepTimeoutError, UnknownExecutorError, WorkerDiedError
from flowckpt.events import StepRetrying
from flowckpt.execution.executors import dask

distributed = pytest.importorskip("distributed")

pytestmark = pytest.mark.filterwarnings("ignore")  # of packages that are not ours

HERE = Path(__file__).parent


@pytest.fixture
def engine(cluster):
    return WorkflowEngine(MemoryCheckpointStore(), executors={"dask": cluster})


@workflow("map")
def mapped(function: str, log: str, count: int):
    chosen = getattr(far_steps, function)
    return (yield step("m").map(chosen, [(log, number) for number in range(count)], concurrency=8).on("dask"))


def test_members_run_on_the_workers_and_equal_calls_are_calls_of_their_own(engine, tmp_path):
    @workflow("equal")
    def equal():
        return (yield step("m").map(far_steps.pay, [str(tmp_path / "log")] * 6).on("dask"))

    assert engine.run_sync(equal).output == ["paid"] * 6
    assert (tmp_path / "log").read_text().splitlines() == ["paid"] * 6


def test_a_step_knows_itself_and_its_arguments_may_be_named_as_options_of_dask(engine):
    @workflow("named")
    def named():
        me = yield step("me").python(far_steps.told).on("dask")
        kept = yield step("kept").python(far_steps.options, key=1, workers=2, retries=3, priority=4, pure=5).on("dask")
        said = yield step("said").python(far_steps.awaited, "hello").on("dask")
        return [me, kept, said]

    me, kept, said = engine.run_sync(named, workflow_id="r").output
    assert me[0] != os.getpid()
    assert me[1:5] == ["r", "me", 1, 1]
    assert (kept, said) == ([1, 2, 3, 4, 5], "hello")


async def test_a_worker_killed_in_the_middle_of_a_map_loses_no_member(engine, tmp_path):
    log = tmp_path / "log"
    events = [each async for each in engine.execute(mapped, function="die_once_of", log=str(log), count=8)]
    assert events[-1].output == list(range(8))
    assert "WorkerDiedError" in {e.error_type.rpartition(".")[2] for e in events if isinstance(e, StepRetrying)}
    assert log.read_text().split().count("0") == 2


def test_a_step_that_kills_each_of_its_workers_fails_in_the_end_and_the_cluster_lives(engine, cluster, monkeypatch):
    monkeypatch.setattr(dask, "MOST_TRIES_WHEN_LOST", 2)

    @workflow("deadly")
    def deadly():
        yield step("a").python(far_steps.die).on("dask")

    error = engine.run_sync(deadly).error
    assert (error.failed_with(WorkerDiedError), error.tries) == (True, 2)
    assert cluster.submit(far_steps.double, 2).result(timeout=120) == 4


def test_a_step_that_must_not_be_done_twice_is_refused_and_the_default_leaves_it_here(cluster, tmp_path):
    @workflow("once")
    def once(place: str):
        made = step("pay").python(far_steps.pid).at_most_once()
        return (yield made.on(place) if place else made)

    engine = WorkflowEngine(MemoryCheckpointStore(), executors={"dask": cluster, "default": cluster})
    refused = engine.run_sync(once, place="dask")
    assert isinstance(refused.error, UnknownExecutorError)
    assert engine.run_sync(once, place="").output == os.getpid()


def test_a_step_out_of_time_is_ended_in_its_worker(engine, tmp_path, late):
    @workflow("spinning")
    def spinning():
        yield step("a").python(far_steps.spin, str(tmp_path / "began"), str(tmp_path / "ended")).on("dask").timeout(600)

    late.advance_after(tmp_path / "began")
    assert engine.run_sync(spinning).error.failed_with(StepTimeoutError)
    assert seen(tmp_path / "ended") == "cleaned up"


async def test_a_cancelled_run_ends_its_steps_in_their_workers(engine, tmp_path):
    @workflow("long")
    def long():
        yield step("a").python(far_steps.spin, str(tmp_path / "began"), str(tmp_path / "ended")).on("dask")

    running = asyncio.ensure_future(engine.run(long))
    await asyncio.to_thread(seen, tmp_path / "began")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(seen, tmp_path / "ended") == "cleaned up"


def test_a_cluster_that_has_not_what_a_step_asks_for_is_told_and_a_client_stays_its_owners(cluster):
    client = cluster._client
    impatient = DaskExecutor(client, patience_seconds=0.5)

    @workflow("gpu")
    def gpu():
        yield step("a").python(far_steps.pid).on("dask", resources={"GPU": 1})

    error = WorkflowEngine(MemoryCheckpointStore(), executors={"dask": impatient}).run_sync(gpu).error
    assert error.failed_with(ExecutorError)
    assert "did nothing for 0.5 s" in error.error_message
    assert "{'GPU': 1}" in error.error_message
    impatient.kill()
    assert client.status == "running"


def test_a_worker_does_not_wait_for_ever_for_an_engine_that_is_gone(cluster, tmp_path):
    asked = []
    executor = DaskExecutor(cluster._client)
    future = executor.submit_heard(lambda *each: asked.append(each[0]), {}, far_steps.ask_for_ever, str(tmp_path / "b"))
    seen(tmp_path / "b")
    until = time.monotonic() + 120
    while not asked:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert asked == [b"are you there?"]
    executor._take(future).release()  # as the scheduler does for a client that has gone
    while any(cluster._client.run(far_steps.threads_that_carry).values()):
        assert time.monotonic() < until
        time.sleep(0.1)
    executor.kill()


def test_a_scheduler_that_is_not_there_fails_the_step_with_a_typed_error(monkeypatch):
    monkeypatch.setattr(dask, "CONNECT_SECONDS", 0.3)

    @workflow("one")
    def one():
        return (yield step("a").python(far_steps.pid))

    options = RunOptions(executors={"default": "dask://127.0.0.1:1"})
    error = WorkflowEngine(MemoryCheckpointStore()).run_sync(one, options=options).error
    assert error.failed_with(ExecutorError)
    assert "tcp://127.0.0.1:1 cannot be reached" in error.error_message


def test_the_engine_killed_on_a_local_cluster_leaves_no_worker_and_resumes(tmp_path):
    (tmp_path / "my-pages.py").write_text((HERE / "program.py").read_text())  # no worker could import that by its name
    environment = {**os.environ, "PROGRAM_LOG": str(tmp_path / "log"), "NO_COLOR": "1"}
    flowckpt = [sys.executable, "-m", "flowckpt"]
    words = [*flowckpt, "run", "my-pages.py:squares", "--id", "r", "--executor", "process=dask:local:2"]
    engine = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    log, until = tmp_path / "log", time.monotonic() + 120
    while not log.exists() or len(log.read_text().splitlines()) < 6:
        assert engine.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    engine.kill()
    engine.communicate()
    workers = {int(line.split()[1]) for line in log.read_text().splitlines()}
    assert all(gone(pid) for pid in workers)
    before = len(log.read_text().splitlines())
    again = [*flowckpt, "resume", "r", "--executor", "process=process:2", "--json"]
    ended = subprocess.run(again, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    document = json.loads(ended.stdout)
    assert document["output"] == sum(number * number for number in range(16)), ended.stderr
    assert document["steps"]["restored"] >= 1
    assert len(log.read_text().splitlines()) - before + 1 == document["steps"]["executed"], "the map counts once, too"


def test_a_local_cluster_leaves_nothing_in_the_temporary_directory(tmp_path):
    (tmp_path / "pages.py").write_text((HERE / "program.py").read_text())
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    environment = {**os.environ, "PROGRAM_LOG": str(tmp_path / "log"), "NO_COLOR": "1", "TMPDIR": str(scratch)}
    words = [sys.executable, "-m", "flowckpt", "run", "pages.py:squares", "--executor", "process=dask:local:1"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in scratch.iterdir()] == []


def test_the_directories_of_killed_processes_are_removed_by_the_next_cluster_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    elsewhere = tmp_path / "elsewhere"

    def leave(name):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()

    leave("flowckpt-dask-killed")
    leave("elsewhere")
    (tmp_path / "flowckpt-dask-killed" / "worker").mkdir()
    (tmp_path / "flowckpt-dask-without-a-lock").mkdir()
    (tmp_path / "flowckpt-dask-link").symlink_to(elsewhere)
    (tmp_path / "flowckpt-dask-file").touch()
    live = dask.Scratch()
    names = {path.name for path in tmp_path.iterdir()}
    assert "flowckpt-dask-killed" not in names
    leave("flowckpt-dask-of-another-user")
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    dask.Scratch().remove()
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = {"flowckpt-dask-of-another-user", "flowckpt-dask-without-a-lock", "flowckpt-dask-link", "flowckpt-dask-file"}
    assert {path.name for path in tmp_path.iterdir()} == {*left, "elsewhere", live.path.name}
    assert (elsewhere / "lock").exists()
    live.remove()
    assert live.path.name not in {path.name for path in tmp_path.iterdir()}


def test_local_clusters_take_free_ports_so_that_several_run_at_once(cluster):
    cluster.submit(len, "abc").result()
    found = {each.laddr for each in psutil.Process().net_connections() if each.status == psutil.CONN_LISTEN}
    assert {each.ip for each in found} == {"127.0.0.1"}
    assert 8787 not in {each.port for each in found}
