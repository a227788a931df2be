"""The executors of other packages, as the page about executors shows them; run where they are installed."""

from __future__ import annotations

import os
import re
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import far_steps
import pytest

from flowckpt import MemoryCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.errors import WorkerDiedError

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "executors.md"


@workflow("far")
def far(place: str):
    doubled = yield step("m").map(far_steps.double, range(5)).on(place)
    me = yield step("me").python(far_steps.told).on(place)
    try:
        yield step("die").python(far_steps.die).on(place)
    except Exception as error:
        return [doubled, me[0] != os.getpid(), me[2], error.failed_with(WorkerDiedError)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("package", ["loky", "ray"])
def test_the_adapter_of_the_page_runs_steps_and_tells_of_a_dead_worker(package):
    module = pytest.importorskip(package)
    block = next(each for each in re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL) if package in each)
    if package == "ray":
        here = os.pathsep.join([str(PAGE.parents[2]), str(Path(__file__).parent)])
        module.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": here}})
    names: dict[str, Any] = {"WorkflowEngine": lambda **given: WorkflowEngine(MemoryCheckpointStore(), **given)}
    exec(block, names)
    try:
        assert names["engine"].run_sync(far, place=package).output == [[0, 2, 4, 6, 8], True, "me", True]
    finally:
        if package == "ray":
            module.shutdown()


def test_an_executor_says_what_it_raises_for_a_dead_worker():
    class GoneError(Exception):
        pass

    class Flaky(Executor):
        lost_worker_errors = (GoneError,)

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_exception(GoneError("it went away\nin two lines"))
            return future

    @workflow("one")
    def one():
        yield step("a").python(far_steps.double, 1).on("flaky")

    error = WorkflowEngine(MemoryCheckpointStore(), executors={"flaky": Flaky()}).run_sync(one).error
    assert error.failed_with(WorkerDiedError)
    assert error.error_message.endswith("died: GoneError: it went away")
