"""Work that an executor cannot stop continues when the run no longer waits for it: a step that must not be done twice is not trusted to it."""

from __future__ import annotations

import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import far_steps
import pytest
from far_processes import seen

from flowckpt import DaskExecutor, MemoryCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.errors import StepInDoubtError, StepTimeoutError
from flowckpt.evidence import file_sha256
from flowckpt.execution.python import is_left_running


class Unstoppable(Executor):
    """An executor that has nothing but what every executor has."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self.pool.submit(fn, *args, **kwargs)


def pay_slowly(began: str, gate: str, paid: str) -> str:
    Path(began).write_text("began\n")
    until = time.monotonic() + 120
    while not Path(gate).exists() and time.monotonic() < until:
        time.sleep(0.005)
    with open(paid, "a") as log:
        log.write("paid\n")
    return "paid"


@pytest.mark.parametrize("kind", ["a thread pool", "another executor"])
def test_what_was_given_up_may_yet_do_its_work_so_no_evidence_denies_it(kind, tmp_path, late):
    began, gate, paid = (str(tmp_path / name) for name in ("began", "gate", "paid"))

    @workflow("paying")
    def paying():
        made = step("pay").python(pay_slowly, began, gate, paid).on("theirs").timeout(600)
        return (
            yield made.at_most_once()
            .evidence(file_sha256(paid, sha256(b"paid\n").hexdigest()))
            .adopt(lambda *_: "it was paid")
        )

    with ThreadPoolExecutor(1) as pool:
        theirs = pool if kind == "a thread pool" else Unstoppable()
        store = MemoryCheckpointStore()
        engine = WorkflowEngine(store, executors={"theirs": theirs})
        late.advance_after(Path(began))
        assert engine.run_sync(paying, workflow_id="r").error.failed_with(StepTimeoutError)
        assert seen(Path(began)) == "began"
        engine = WorkflowEngine(store, executors={"theirs": ThreadPoolExecutor(1)})
        with pytest.raises(StepInDoubtError, match="its function still runs after the timeout"):
            engine.resume_sync(paying, workflow_id="r").unwrap()
        Path(gate).touch()
        assert seen(Path(paid)) == "paid"
        until = time.monotonic() + 120
        while is_left_running("r", "pay"):
            assert time.monotonic() < until
            time.sleep(0.005)
        assert engine.resume_sync(paying, workflow_id="r").output == "it was paid"
        assert Path(paid).read_text() == "paid\n"
        if isinstance(theirs, Unstoppable):
            theirs.pool.shutdown()


def test_a_cluster_knows_whether_work_that_it_has_stopped_still_goes_on(cluster: DaskExecutor, tmp_path):
    future = cluster.submit(far_steps.stay_a_while, str(tmp_path / "began"), 1.5)
    seen(tmp_path / "began")
    cluster.stop(future)
    assert future.done()
    assert cluster.is_at_work(future)
    until = time.monotonic() + 120
    while cluster.is_at_work(future):
        assert time.monotonic() < until
        time.sleep(0.05)
