"""Secrets in steps that are made of steps: maps, groups, child workflows."""

from __future__ import annotations

from typing import Any

import pytest

from flowckpt import MemoryCheckpointStore, Secret, WorkflowEngine, parallel, step, workflow
from flowckpt.core.codec.checkpoints import export_document
from flowckpt.errors import FlowckptError, StepDefinitionError

TOKEN = "hunter2-hunter2"
is_ready: list[bool] = []


@pytest.fixture(autouse=True)
def fresh():
    is_ready.clear()


@pytest.fixture
def engine():
    return WorkflowEngine(MemoryCheckpointStore())


def use(token: Secret[str], *more: Any) -> int:
    if not is_ready:
        raise ValueError(f"no {token.reveal()}")
    return len(token.reveal())


def length(token: Any) -> int:
    return len(token.reveal() if isinstance(token, Secret) else token)


@workflow
def inner(token: Secret[str]):
    first = yield step("length").python(length, token).checkpoint()
    return first + (yield step("use").python(use, token).checkpoint())


@workflow
def outer(token: Secret[str]):
    return (yield step("child").workflow(inner, token=token).checkpoint())


@workflow
def revealing(token: Secret[str]):
    return (yield step("child").workflow(inner, token=token.reveal()).checkpoint())


@workflow
def grouping(token: Secret[str]):
    return (yield parallel(step("a").python(length, token), step("b").python(use, token)))


@workflow
def mapping(token: Secret[str]):
    return (yield step("all").map(length, [token, token.reveal()]).checkpoint()), (
        yield step("one").map(use, [token]).checkpoint()
    )


@workflow
def naming(token: Secret[str]):
    yield step("all").map(length, [token], key=Secret.reveal).checkpoint()


@pytest.mark.parametrize("made", [outer, revealing, grouping, mapping], ids=lambda made: made.name)
async def test_what_is_nested_leaves_no_trace_and_is_resumed_with_the_secret_given_again(engine, made):
    events = [str(event) async for event in engine.execute(made, workflow_id="run", token=TOKEN)]
    data = await engine.store.load_latest("run")
    assert data.status == "failed" and "no (hidden)" in data.error.message + data.error.traceback
    assert TOKEN not in "".join(events) + str(export_document(data))
    with pytest.raises(FlowckptError, match="'token' of run 'run' must be given again"):
        await engine.resume_run(made, workflow_id="run")
    is_ready.append(True)
    result = await engine.resume_run(made, workflow_id="run", token="rotated")
    assert result.status == "completed"
    assert result.steps.restored or made is grouping  # where one failed, the other may have been stopped
    assert "rotated" not in str(export_document(await engine.store.load_latest("run")))


async def test_a_member_named_after_it_is_refused(engine):
    result = await engine.run(naming, workflow_id="run", token=TOKEN)
    assert isinstance(result.error, StepDefinitionError)
    assert TOKEN not in str(result.error) + str(export_document(await engine.store.load_latest("run")))


@pytest.mark.parametrize("kind", ["map", "parallel", "workflow"])
async def test_what_is_made_of_steps_cannot_be_secret_itself(engine, kind):
    @workflow
    def wrong(token: Secret[str]):
        yield {
            "map": lambda: step("s").map(length, [token]).secret(),
            "parallel": lambda: parallel(step("s").python(length, token)).secret(),
            "workflow": lambda: step("s").workflow(inner, token=token).secret(),
        }[kind]()

    result = await engine.run(wrong, token=TOKEN)
    assert isinstance(result.error, StepDefinitionError) and ".secret()" in str(result.error)


async def test_a_secret_step_may_stand_in_a_group(engine):
    @workflow
    def grouped(token: Secret[str]):
        one, _ = yield parallel(step("a").python(length, token).secret(), step("b").python(length, token))
        return type(one).__name__

    result = await engine.run(grouped, workflow_id="run", token=TOKEN)
    assert result.output == "Secret", result.error
