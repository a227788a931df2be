"""Steps nest to a documented depth; beyond it the run and its resume say so."""

from __future__ import annotations

import pytest

from flowckpt import MemoryCheckpointStore, WorkflowEngine, in_sync, parallel, step, workflow
from flowckpt.core.dsl.checks import MAX_DEPTH
from flowckpt.errors import StepDefinitionError


@workflow
def nested(n: int):
    if n:
        return (yield step("d").workflow(nested, n=n - 1))
    return (yield step("leaf").python(len, "abc").checkpoint())


@workflow
def mapped(n: int):
    if n:
        found = yield step("m").map(mapped, [n - 1])
        return found[0]
    return (yield step("leaf").python(len, "abc").checkpoint())


@workflow
def grouped(n: int):
    group = step("leaf").python(len, "abc").checkpoint()
    for index in range(n):
        group = parallel(group, name=f"g{index}")
    yield group
    return 3


DEEPEST = [(nested, MAX_DEPTH), (mapped, MAX_DEPTH // 2), (grouped, MAX_DEPTH)]


@pytest.mark.parametrize(("flow", "most"), DEEPEST, ids=["child", "map", "group"])
def test_steps_nest_to_the_documented_depth(flow, most):
    engine = WorkflowEngine(MemoryCheckpointStore())
    done = engine.run_sync(flow, workflow_id="one", n=most)
    assert done.output == 3
    assert engine.resume_sync(flow, workflow_id="one").output == 3
    assert in_sync(engine).plan(flow, workflow_id="one").is_nothing_to_do


@pytest.mark.parametrize("more", [1, 2, 900])
@pytest.mark.parametrize(("flow", "most"), DEEPEST, ids=["child", "map", "group"])
def test_a_step_that_lies_deeper_is_refused(flow, most, more):
    engine = WorkflowEngine(MemoryCheckpointStore())
    for start in (engine.run_sync, engine.resume_sync):
        given = {"n": most + more} if start == engine.run_sync else {}
        failed = start(flow, workflow_id="one", **given)
        assert isinstance(failed.error, StepDefinitionError), failed.error
        assert f"more than {MAX_DEPTH} deep" in str(failed.error)
