"""What `.on()` takes, and where it makes no sense."""

from __future__ import annotations

import pickle

import far_steps
import pytest

from flowckpt import MemoryCheckpointStore, WorkflowEngine, errors, parallel, step, workflow
from flowckpt.errors import StepDefinitionError


@pytest.mark.parametrize("name", ["", " ", "a b", "dask://host", "1", None, 3, "x" * 101])
def test_a_name_that_is_none_is_refused_where_it_is_written(name):
    with pytest.raises(StepDefinitionError, match=r"\.on\(\)") as caught:
        step("a").on(name)
    assert "test_on.py" in caught.value.where


@pytest.mark.parametrize("resources", [{"": 1}, {"GPU": 0}, {"GPU": -1}, {"GPU": True}, {"GPU": "1"}, ["GPU"], "GPU"])
def test_resources_that_are_none_are_refused(resources):
    with pytest.raises(StepDefinitionError, match="resources"):
        step("a").on("dask", resources=resources)


def test_it_is_given_once():
    with pytest.raises(StepDefinitionError, match="twice"):
        step("a").on("process").python(far_steps.pid).on("thread")


def test_an_ephemeral_step_stays_in_the_engine():
    with pytest.raises(StepDefinitionError, match="ephemeral"):
        step("a").on("process").ephemeral()
    with pytest.raises(StepDefinitionError, match="ephemeral"):
        step("a").ephemeral().python(far_steps.pid).on("process")


@workflow("child")
def child(number: int):
    return (yield step("double").python(far_steps.double, number))


@pytest.mark.parametrize(
    "made",
    [
        lambda: step("a").command(["true"]).on("process"),
        lambda: step("a").workflow(child, number=1).on("process"),
        lambda: step("a").map(child, [1, 2]).on("process"),
        lambda: parallel(step("b").python(far_steps.pid)).on("process"),
        lambda: parallel(step("b").command(["true"]).on("process")),
    ],
    ids=["command", "workflow", "map of a workflow", "group", "command in a group"],
)
def test_where_no_function_is_called_it_is_refused(made):
    @workflow("one")
    def one():
        yield made()

    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(one)
    assert isinstance(result.error, StepDefinitionError)
    assert ".on() cannot be used" in result.error.message
    assert "test_on.py" in result.error.where


def test_a_group_has_members_on_different_executors():
    @workflow("group")
    def group():
        return (
            yield parallel(
                step("a").python(far_steps.double, 1).on("process"),
                step("b").python(far_steps.thread_name).on("thread"),
                step("c").python(far_steps.double, 3),
            )
        )

    assert WorkflowEngine(MemoryCheckpointStore()).run_sync(group).output == (2, "flowckpt-step", 6)


@pytest.mark.parametrize(
    "error",
    [
        errors.ExecutorError("it is down", executor="gpu", path="a", remedy="Wait."),
        errors.UnknownExecutorError("no gpu", executor="gpu", path="a", known=["process"], remedy="Give it."),
        errors.NotSendableError(
            "a", executor="gpu", place="the function", type_name="x", detail="no", remedy="Move it."
        ),
        errors.WorkerDiedError("a", executor="gpu", detail="it was killed", exit_code=-9),
        errors.NoAsyncioError("engine.run"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_errors_survive_pickling_with_their_data(error):
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), vars(copied)) == (str(error), vars(error))
    assert copied.remedy
