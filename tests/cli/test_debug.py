"""`flowckpt debug`: the workflow's real locals at a recorded step, without running any step."""

from __future__ import annotations

import asyncio

import pytest

from flowckpt import MemoryCheckpointStore, Secret, WorkflowEngine, parallel, step, workflow
from flowckpt.errors import CheckpointNotFoundError, FlowckptError, StepNotFoundError, TargetError, WorkflowChangedError

PROGRAM = """
from pathlib import Path

from flowckpt import Secret, step, workflow


def note(name):
    with Path("log").open("a") as log:
        log.write(f"{name}\\n")


def fetch(n):
    note("fetch")
    return list(range(n))


def transform(rows, factor=2):
    note("transform")
    if factor > 2:
        raise ValueError("too large")
    return [row * factor for row in rows]


def inner(rows):
    where = "inside"
    doubled = yield step("transform").python(transform, rows).checkpoint()
    return doubled


@workflow
def etl(n: int = 3, factor: int = 2, token: Secret[str] = Secret("unset")):
    rows = yield step("fetch").python(fetch, n).checkpoint()
    total = sum(rows)
    doubled = yield from inner(rows)
    more = len(doubled)
    again = yield step("transform").python(transform, doubled, factor=factor).checkpoint()
    return again


@workflow
def breaks(n: int = 1):
    rows = yield step("fetch").python(fetch, n).checkpoint()
    empty = {}
    return empty["x"]
"""


@pytest.fixture
def shell(flowckpt):
    (flowckpt.directory / "etl.py").write_text(PROGRAM)
    return flowckpt


def commands(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def test_locals_are_those_at_the_yield_and_no_step_runs(shell):
    shell("run", "etl.py:etl", "--id", "good", "-i", "token=topsecret99").expect(0)
    log = shell.log()
    shown = shell("debug", "good", "--at", "transform", "--locals").expect(0).out.splitlines()
    assert shown[0].startswith("run good: the workflow etl is stopped at step 'transform', ")
    assert shown[1:] == ["  rows = [0, 1, 2]", "  where = 'inside'", "the step calls transform([0, 1, 2])"]
    document = shell("debug", "good", "--locals", "--json").expect(0).document  # a completed run: its last step
    assert (document["path"], document["locals"]["more"], document["error"]) == ("transform[1]", "3", None)
    assert document["arguments"] == {"0": "[0, 2, 4]", "factor": "2"}
    assert "topsecret99" not in str(document) and document["locals"]["token"] == "Secret(hidden)"
    assert shell.log() == log


def test_the_debugger_steps_over_recorded_results(shell):
    shell("run", "etl.py:etl", "--id", "good").expect(0)
    log = shell.log()
    said = shell(
        "debug", "good", "--at", "transform",
        stdin=commands("p rows", "up", "p total", "down", "next", "p doubled", "next", "next", "next", "p more", "q"),
    ).expect(0).out  # fmt: skip
    assert '-> doubled = yield step("transform").python(transform, rows).checkpoint()' in said
    for expected in ("(Pdb) [0, 1, 2]\n", "(Pdb) 3\n", "(Pdb) [0, 2, 4]\n", "-> more = len(doubled)"):
        assert expected in said, said
    assert '-> again = yield step("transform")' in said and said.rstrip().endswith("(Pdb)")
    assert "click" not in said and "flowckpt/engine" not in said
    assert shell.log() == log


def test_a_failed_run_stops_where_it_failed_with_its_call_at_hand(shell):
    shell("run", "etl.py:etl", "--id", "bad", "-i", "factor=5").expect(1)
    asked = commands("p _step.args, _step.kwargs", "p _step.function(*_step.args, factor=1)", "p _step.call()")
    said = shell("debug", "bad", stdin=asked).expect(0).out
    assert "is stopped at step 'transform[1]'" in said and "it failed: ValueError: too large" in said
    assert "(([0, 2, 4],), {'factor': 5})" in said and "(Pdb) [0, 2, 4]" in said and "*** ValueError: too large" in said


def test_a_workflow_that_raised_itself_stops_at_that_line(shell):
    shell("run", "etl.py:breaks", "--id", "broken").expect(1)
    shown = shell("debug", "broken", "--locals").expect(0).out
    assert (
        "is stopped where it raised an error, " in shown
        and "  empty = {}" in shown
        and "it failed: KeyError: 'x'" in shown
    )
    said = shell("debug", "broken", stdin=commands("p rows", "w", "q")).expect(0).out
    assert '-> return empty["x"]' in said and "(Pdb) [0]" in said and "click" not in said


def test_what_cannot_be_opened_is_refused_with_its_reason(shell):
    shell("run", "etl.py:etl", "--id", "good").expect(0)
    missing = shell("debug", "good", "--at", "nope", "--locals").expect(12)
    assert "run 'good' has no step 'nope'" in missing.err and "It has: fetch, transform, transform[1]." in missing.err
    assert "--json needs --locals" in shell("debug", "good", "--json").expect(2).err
    shell("debug", "none", "--locals").expect(12)
    shell("export", "good", "-o", "good.jsonl").expect(0)
    shell("import", "good.jsonl", FLOWCKPT_STORE="file:other").expect(0)
    (shell.directory / "etl.py").write_text("raise SystemError('it was imported')")
    held = shell("debug", "good", "--locals", FLOWCKPT_STORE="file:other").expect(2)
    assert "was imported: its record" in held.err and "SystemError" not in held.err
    (shell.directory / "etl.py").write_text(PROGRAM.replace('step("fetch")', 'step("get")'))
    changed = shell("debug", "good", "--at", "transform", "--locals").expect(14)
    assert "yields the step 'get', which the record does not have" in changed.err and "etl.py:" in changed.err


# --- from Python --------------------------------------------------------------------------------------------------------


def one(n: int) -> int:
    return n


@workflow
def child(n: int):
    base = n * 10
    return (yield step("one").python(one, base).checkpoint())


@workflow
def family(token: Secret[str], n: int = 2):
    kids = yield step("kids").map(child, [1, n]).checkpoint()
    model = yield step("model").python(object).ephemeral()
    pair = yield parallel(step("a").python(one, 3), step("b").python(one, 4)).checkpoint()
    yield step("stop").wait("go")
    return model, pair, kids, token.reveal()


@pytest.fixture(scope="module")
def engine():
    made = WorkflowEngine(MemoryCheckpointStore())
    assert made.run_sync(family, workflow_id="run", token=Secret("a long secret")).status == "suspended"
    return made


def test_history_is_open_at_every_step_also_inside_others(engine):
    history = engine.open("run")
    assert dict(history.at("kids/[1]/one").locals) == {"n": 2, "base": 20}
    assert history.at("kids/[0]/one").call() == 10
    moment = history.at("kids")
    assert (moment.locals["n"], moment.function, moment.is_recorded) == (2, None, True)
    here = history.at()
    assert (here.path, here.is_recorded, here.locals["pair"], here.locals["kids"]) == ("stop", False, (3, 4), [10, 20])
    assert "a long secret" not in repr(here.locals["token"])
    with pytest.raises(FlowckptError, match="has no function to call"):
        moment.call()
    with pytest.raises(TypeError):
        here.locals["pair"] = 1


async def test_it_opens_inside_a_running_loop(engine):
    assert engine.open("run").at("kids").path == "kids"
    assert asyncio.get_running_loop().is_running()


def test_errors_name_what_is_missing(engine):
    with pytest.raises(CheckpointNotFoundError):
        engine.open("other")
    with pytest.raises(StepNotFoundError, match="has no step 'nope'"):
        engine.open("run").at("nope")

    @workflow(name="family")
    def another(token: Secret[str], n: int = 2):
        yield step("different").python(one, n)

    with pytest.raises(WorkflowChangedError, match="yields the step 'different'"):
        engine.open("run", workflow=another).at("kids")

    @workflow
    def local():
        yield step("one").python(one, 1)

    engine.run_sync(local, workflow_id="local")
    with pytest.raises(TargetError, match="from inside a function"):
        engine.open("local")
    assert engine.open("local", workflow=local).at("one").location.startswith(__file__)


def test_a_workflow_that_needs_what_no_record_has_says_so():
    def load() -> object:
        return object()

    @workflow
    def uses(key: Secret[str]):
        model = yield step("model").python(load).ephemeral()
        name = type(model).__name__ + str(hash(model))[:0]
        yield step("one").python(one, 1).checkpoint()
        key.reveal()
        yield step("one").python(one, len(name)).checkpoint()

    made = WorkflowEngine(MemoryCheckpointStore())
    made.run_sync(uses, workflow_id="run", key="s3cret-enough")
    with pytest.raises(FlowckptError, match="uses the output of 'model', which runs at each resume"):
        made.open("run", workflow=uses).at("one")
