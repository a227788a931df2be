"""A forgotten `yield`: the step does nothing, so the run says so, and whatever takes the step for its output fails."""

from __future__ import annotations

import copy
import logging
import re
import traceback
from typing import Any, cast

import pytest

from flowckpt import MemoryCheckpointStore, WorkflowEngine, now, parallel, step, workflow
from flowckpt.core.records import Status
from flowckpt.errors import EncodingError, StepDefinitionError, StepNotYieldedError
from tests import forked


def add(*values, **named):
    return len(values) + len(named)


def fail():
    raise ValueError("no")


@workflow
def child():
    step("lost in the child").python(add)
    yield step("inner").python(add, 1)


@workflow
def forgets():
    step("lost").python(add, 1).checkpoint()
    for _ in range(12):
        now()
    parallel(step("a").python(add), step("b").python(add))
    yield parallel(step("a").python(add), step("b").python(add))
    kept = step("kept").python(add, 1).checkpoint()
    yield kept
    yield from step("typed").python(add, 2)
    yield step("each").map(add, [1, 2])
    yield step("child").workflow(child)
    return 1


@workflow
def fails_early():
    later = [step("later").python(add, number) for number in range(3)]
    step("lost").python(add)
    yield step("fails").python(fail)
    for number in range(3):
        yield later[number]


@workflow
def waits():
    step("lost").python(add)
    yield step("wait").wait("never")


def lost_lines(caplog):
    return [record.getMessage() for record in caplog.records if "never yielded" in record.getMessage()]


def line_of(text):
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


def test_a_completed_run_names_each_step_that_was_never_yielded(caplog):
    engine = WorkflowEngine(MemoryCheckpointStore())
    assert engine.run_sync(forgets, workflow_id="r").unwrap() == 1
    lines = lost_lines(caplog)
    assert len(lines) == 4, lines
    number = line_of('step("lost").python(add, 1).checkpoint()')
    assert f"step 'lost' was created at {__file__}:{number} and" in lines[0]
    assert "step 'now'" in lines[1] and " 12 times " in lines[1]
    assert "step 'parallel'" in lines[2]
    assert "step 'lost in the child'" in lines[3]


def test_a_failed_run_names_only_steps_that_nothing_could_yield_later(caplog):
    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(fails_early)
    assert result.status is Status.FAILED
    (line,) = lost_lines(caplog)
    assert "step 'lost'" in line


def test_a_suspended_run_may_still_yield_them(caplog):
    assert WorkflowEngine(MemoryCheckpointStore()).run_sync(waits).status is Status.SUSPENDED
    assert lost_lines(caplog) == []


def test_steps_created_outside_a_run_are_nobodys_business(caplog):
    caplog.set_level(logging.WARNING)
    step("free").python(add, 1)

    def runs_another():
        return WorkflowEngine(MemoryCheckpointStore()).run_sync(clean).unwrap()

    @workflow
    def clean():
        yield step("one").python(add, 1)
        return 1

    @workflow
    def outer():
        return (yield step("run").python(runs_another))

    assert WorkflowEngine(MemoryCheckpointStore()).run_sync(outer).unwrap() == 1
    assert lost_lines(caplog) == []


@pytest.mark.parametrize(
    "use",
    [
        lambda it: bool(it),
        lambda it: not it,
        lambda it: len(it),
        lambda it: it["rows"],
        lambda it: it[0],
        lambda it: it < 3,
        lambda it: it >= 3,
        lambda it: it == 3,
        lambda it: it != "x",
        lambda it: [3].index(it),
        lambda it: it + 1,
        lambda it: 1 + it,
        lambda it: "rows: " + it,
        lambda it: sum([it, it]),
        lambda it: it * 2,
        lambda it: it / it,
        lambda it: it**2,
        lambda it: -it,
        lambda it: round(it, 2),
        lambda it: int(it),
        lambda it: range(it),
        lambda it: it | {1},
        lambda it: step("next").python(add, it),
        lambda it: step("next").python(add, value=it),
        lambda it: step("next").map(add, [it]),
        lambda it: step("next").map(add, [1], other=it),
        lambda it: step("next").workflow(cast("Any", forgets), limit=it),
    ],
)
def test_a_step_is_not_its_output(use):
    lost = step("lost").python(add, 1).checkpoint()
    with pytest.raises(StepNotYieldedError, match="'lost'.*at .*test_forgotten_yields.py:") as failure:
        use(lost)
    assert failure.value.remedy == 'Yield it: value = yield step("lost")…'
    assert isinstance(failure.value, StepDefinitionError) and failure.value.step == "lost"


def test_protocols_of_python_still_work_on_steps():
    lost = step("lost").python(add, 1)
    assert copy.copy(lost) == lost == copy.deepcopy(lost)
    assert lost != step("other").python(add, 1)
    assert not hasattr(lost, "__rich__") and not hasattr(lost, "rows")
    assert list(lost) == [lost]


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda it: it.rows, "step 'lost' has no attribute 'rows': it is a step"),
        (
            lambda it: it.chekpoint(),
            "step 'lost' has no attribute 'chekpoint' (did you mean 'checkpoint'?): it is a step",
        ),
        (lambda it: it.splitlines(), "has no attribute 'splitlines': it is a step"),
    ],
)
def test_a_workflow_that_asks_a_step_for_an_attribute_of_its_output_is_told_to_yield_it(use, said):
    @workflow
    def forgotten():
        lost = step("lost").python(add, 1)
        use(lost)
        yield lost

    with pytest.raises(StepNotYieldedError, match=re.escape(said)) as failure:
        WorkflowEngine(MemoryCheckpointStore()).run_sync(forgotten).unwrap()
    assert failure.value.step == "lost" and failure.value.where == f"{__file__}:{use.__code__.co_firstlineno}"
    assert failure.value.name in said and failure.value.obj == step("lost").python(add, 1)
    assert any(each.name == "forgotten" for each in traceback.extract_tb(failure.value.__traceback__))


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda: step("s").pyhton(add, 1), "step 's' has no action or modifier 'pyhton' (did you mean 'python'?)"),
        (lambda: step("s").chekpoint(), "step 's' has no action or modifier 'chekpoint' (did you mean 'checkpoint'?)"),
        (
            lambda: step("s").shell("ls"),
            "step 's' has no action or modifier 'shell' (it has adopt, approval, at_most_once,",
        ),
    ],
)
def test_a_workflow_with_a_misspelt_action_or_modifier_fails_with_a_similar_name_or_all_names(use, said):
    @workflow
    def misspelt():
        yield use()

    with pytest.raises(AttributeError, match=re.escape(said)):
        WorkflowEngine(MemoryCheckpointStore()).run_sync(misspelt).unwrap()


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (
            lambda: step("s").command("wc", "-l", "a.txt"),
            (
                "The method is .command(argv, *, cwd=None, env=None, stdin=None, max_output=1000000); "
                "argv is a list: the program and its arguments."
            ),
        ),
        (lambda: step("s").python(add).retry(tims=3), "The method is .retry(attempts, backoff=0.0, max_delay=None, "),
        (lambda: step("s").python(), "The method is .python(function, /, *args, **kwargs)."),
    ],
)
def test_the_error_of_a_method_of_a_step_with_wrong_arguments_shows_its_parameters(use, said):
    @workflow
    def wrong():
        yield use()

    with pytest.raises(TypeError) as failure:
        WorkflowEngine(MemoryCheckpointStore()).run_sync(wrong).unwrap()
    assert failure.value.__notes__[0].startswith(said)


class Step:
    def command(self, argv): ...


def test_a_type_error_of_other_code_is_left_alone():
    @workflow
    def wrong():
        Step().command("wc", "-l")
        yield step("s").python(add)

    with pytest.raises(TypeError) as failure:
        WorkflowEngine(MemoryCheckpointStore()).run_sync(wrong).unwrap()
    assert not hasattr(failure.value, "__notes__")


def test_a_workflow_may_handle_a_missing_attribute_of_a_step_itself():
    @workflow
    def asks():
        made = step("s").python(add, 1)
        value = getattr(made, "rows", 3)
        return (yield made) + value

    assert WorkflowEngine(MemoryCheckpointStore()).run_sync(asks).unwrap() == add(1) + 3


def test_a_step_in_an_argument_that_holds_it_fails_the_run():
    @workflow
    def nested():
        lost = step("lost").python(add, 1)
        yield step("next").python(add, {"rows": [lost]})

    with pytest.raises(StepNotYieldedError, match="gets the step 'lost' as an argument"):
        WorkflowEngine(MemoryCheckpointStore()).run_sync(nested).unwrap()


def test_a_step_in_an_output_is_named():
    @workflow
    def returns_step():
        yield step("ok").python(add)
        return {"rows": step("lost").python(add)}

    with pytest.raises(EncodingError, match=r"output\.rows is the step 'lost', which was never yielded"):
        WorkflowEngine(MemoryCheckpointStore()).run_sync(returns_step).unwrap()


def test_the_command_says_it_once_at_the_end(tmp_path):
    (tmp_path / "pipeline.py").write_text(
        "from flowckpt import step, workflow\n"
        "@workflow\n"
        "def etl():\n"
        "    step('fetch').python(abs, -1).checkpoint()\n"
        "    yield step('load').python(abs, -2)\n"
    )
    ran = forked.run(["-m", "flowckpt", "run", "pipeline.py"], cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("never yielded") == 1
    assert "warning:" in ran.stderr and "pipeline.py:4 and never yielded, so it did not run" in ran.stderr


@workflow
def misspells():
    yield step("one").python(add, 1)
    yield (
        step("two").python(add, 2).retry(3, delay="x")  # type: ignore[call-arg]
    )


def test_a_step_whose_own_expression_raised_was_not_forgotten(caplog):
    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(misspells)
    assert result.status is Status.FAILED and "delay" in str(result.error)
    assert not [each for each in caplog.messages if "never yielded" in each]
