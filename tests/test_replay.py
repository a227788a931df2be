"""Replay without a loop, a store or a clock: a generator and a record in, commands out."""

from __future__ import annotations

import inspect
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowckpt.core.dsl import step, workflow
from flowckpt.core.records import StepError, StepResult
from flowckpt.core.replay import Crash, Execute, Finish, Replay, Restore
from flowckpt.errors import StepDefinitionError, StepFailedError, WorkflowChangedError, WorkflowDefinitionError


def work(*args):
    return args


def other(*args):
    return args


def failure(path):
    return StepFailedError(path, error_type="ValueError", error_message="no")


def drive(generator, recorded=(), *, answer=lambda command: command.path.upper(), stop_after=None):
    """Drive a generator to its end; return the commands, and the history that a run would have then."""
    replay = Replay(generator, recorded, "w")
    commands, history = [], list(recorded)
    command = replay.start()
    while True:
        commands.append(command)
        if isinstance(command, Finish | Crash) or len(commands) == stop_after:
            return commands, history
        if isinstance(command, Restore):
            result = command.result
        else:
            value = answer(command)
            is_failure = isinstance(value, Exception)
            result = StepResult(
                command.step.name,
                path=command.path,
                output=None if is_failure else value,
                success=not is_failure,
                error=StepError("ValueError", "no") if is_failure else None,
                function=command.step.action.function_name,
                location=command.location,
            )
            if not command.step.modifiers.is_ephemeral:
                history.append(result)
        command = replay.send(result.output) if result.success else replay.throw(failure(command.path))


def shown(commands):
    return [
        f"{type(c).__name__} {c.output if isinstance(c, Finish) else repr(c.error) if isinstance(c, Crash) else c.path}"
        for c in commands
    ]


def record_of(generator, **options):
    return drive(generator, **options)[1]


# --- the plain course ------------------------------------------------------------------------------------------------


def etl():
    rows = yield step("fetch").python(work, 1)
    total = yield step("clean").python(work, rows)
    return [rows, total]


def test_a_new_run_executes_every_step_and_a_complete_record_restores_every_one():
    commands, history = drive(etl())
    assert shown(commands) == ["Execute fetch", "Execute clean", "Finish ['FETCH', 'CLEAN']"]
    commands, again = drive(etl(), history, answer=pytest.fail)
    assert shown(commands) == ["Restore fetch", "Restore clean", "Finish ['FETCH', 'CLEAN']"]
    assert again == history


def test_half_a_record_restores_its_half_and_executes_the_rest():
    history = record_of(etl())
    assert shown(drive(etl(), history[:1])[0]) == ["Restore fetch", "Execute clean", "Finish ['FETCH', 'CLEAN']"]


def test_a_restore_hands_over_the_recorded_result_and_the_step_as_it_is_yielded_now():
    history = record_of(etl())
    (first, *_), _ = drive(etl(), history)
    assert first.result is history[0]
    assert first.step == step("fetch").python(work, 1)


def test_uses_of_a_name_are_counted_in_loops_and_each_name_by_itself():
    def loop():
        found = []
        for _ in range(3):
            found.append((yield step("page").python(work)))
            yield step("a/b").python(work)
        return len(found)

    commands, history = drive(loop())
    expected = ["page", "a%2Fb", "page[1]", "a%2Fb[1]", "page[2]", "a%2Fb[2]"]
    assert [c.path for c in commands[:-1]] == expected
    assert shown(drive(loop(), history[:4])[0])[3:5] == ["Restore a%2Fb[1]", "Execute page[2]"]


def test_a_name_that_looks_like_a_use_of_another_is_kept_apart():
    def confusing():
        yield step("x").python(work)
        yield step("x[1]").python(work)
        yield step("x").python(work)

    commands, history = drive(confusing())
    assert [c.path for c in commands[:-1]] == ["x", "x%5B1%5D", "x[1]"]
    assert shown(drive(confusing(), history)[0])[:3] == ["Restore x", "Restore x%5B1%5D", "Restore x[1]"]


def test_ephemeral_steps_are_executed_at_each_replay_and_need_no_record():
    def with_model():
        model = yield step("model").python(work).ephemeral()
        first = yield step("a").python(work, model)
        yield step("model").python(work).ephemeral()
        return (yield step("b").python(work, first))

    commands, history = drive(with_model())
    assert [result.path for result in history] == ["a", "b"]
    for kept in range(3):
        verbs = ["Execute", "Restore" if kept > 0 else "Execute", "Execute", "Restore" if kept > 1 else "Execute"]
        paths = ["model", "a", "model[1]", "b"]
        expected = [f"{verb} {path}" for verb, path in zip(verbs, paths, strict=True)]
        assert shown(drive(with_model(), history[:kept])[0]) == [*expected, "Finish B"]


def test_a_failure_that_the_generator_handled_replays_the_same():
    def handling():
        try:
            yield step("try").python(work)
        except StepFailedError as error:
            instead = yield step("instead").python(work)
            return error.path, instead

    def answer(command):
        return failure("try") if command.path == "try" else "plan B"

    commands, history = drive(handling(), answer=answer)
    assert shown(commands)[-1] == "Finish ('try', 'plan B')"
    assert [result.success for result in history] == [False, True]
    for kept in (1, 2):
        again, _ = drive(handling(), history[:kept], answer=answer)
        assert shown(again)[-1] == "Finish ('try', 'plan B')"
        assert shown(again)[0] == "Restore try"


def test_a_failure_that_nobody_handles_is_the_crash_of_the_generator():
    commands, history = drive(etl(), answer=lambda command: failure("fetch"))
    assert isinstance(commands[-1], Crash)
    assert isinstance(commands[-1].error, StepFailedError)
    assert isinstance(drive(etl(), history)[0][-1], Crash)


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_whatever_the_generator_raises_is_a_crash_with_that_very_error(error):
    def raising():
        yield step("a").python(work)
        raise error

    commands, _ = drive(raising())
    assert commands[-1] == Crash(error)


def test_a_generator_without_steps_and_one_that_raises_at_once():
    def empty():
        return 5
        yield

    def broken():
        raise ValueError("x")
        yield

    assert drive(empty())[0] == [Finish(5)]
    assert isinstance(drive(broken())[0][0].error, ValueError)


def test_results_are_found_by_path_in_whatever_order_they_were_recorded():
    """As the children of a fan-out are: in the order in which they ended."""
    history = record_of(etl())
    assert shown(drive(etl(), history[::-1])[0])[:2] == ["Restore fetch", "Restore clean"]


# --- the code has changed (pitfall 7) --------------------------------------------------------------------------------


def steps(*names, function=work, output="done"):
    """A generator of steps of these names, and a list that says whether it was closed."""
    closed = []

    def generate():
        try:
            for name in names:
                yield step(name).python(function)
            return output
        finally:
            closed.append(True)

    return generate(), closed


LINE = inspect.getsourcelines(steps)[1] + 7
"""Where `steps` yields."""


def changed(recorded_names, *names, answer=pytest.fail, **options):
    """Replay the record of some steps against a generator of others; return the error."""
    history = record_of(steps(*recorded_names)[0])
    generator, closed = steps(*names, **options)
    with pytest.raises(WorkflowChangedError) as caught:
        drive(generator, history, answer=answer)
    assert closed == [True]
    assert inspect.getgeneratorstate(generator) == inspect.GEN_CLOSED
    assert caught.value.workflow_name == "w"
    assert caught.value.remedy
    assert caught.value.recorded in str(caught.value)
    assert caught.value.yielded in str(caught.value)
    return caught.value


def test_an_inserted_step_is_refused_before_anything_is_run():
    error = changed(["a", "b"], "a", "new", "b")
    assert re.fullmatch(rf"step 'b' \(python .*test_replay:work\) at test_replay.py:{LINE}", error.recorded)
    assert re.fullmatch(rf"step 'new' \(python .*test_replay:work\) at {re.escape(__file__)}:{LINE}", error.yielded)
    assert "yields the step 'new', which the record does not have" in str(error)


def test_a_renamed_step_is_refused_before_anything_is_run():
    error = changed(["a", "old", "c"], "a", "new", "c")
    assert error.recorded.startswith("step 'old'")
    assert error.yielded.startswith("step 'new'")


def test_a_removed_step_is_refused_before_anything_new_is_run():
    error = changed(["a", "b", "c"], "a", "c", "d")
    assert error.recorded.startswith("step 'b'")
    assert error.yielded.startswith("step 'd'")


def test_a_removed_last_step_is_an_end_before_the_record_ends():
    error = changed(["a", "b"], "a", output={"rows": 1})
    assert "returns before the record ends" in str(error)
    assert error.recorded.startswith("step 'b'")
    assert error.yielded == "return {'rows': 1}"


def test_a_step_moved_before_recorded_ones_is_refused_unless_it_is_recorded_too():
    error = changed(["a", "b"], "late", "a", "b")
    assert error.recorded.startswith("step 'a'")
    history = record_of(steps("a", "b")[0])
    commands, _ = drive(steps("b", "a")[0], history, answer=pytest.fail)
    assert shown(commands) == ["Restore b", "Restore a", "Finish done"]  # by path: nothing is run, nothing is lost


def test_one_use_of_a_name_less_or_more_is_noticed():
    assert changed(["a", "a", "b"], "a", "b").recorded.startswith("step 'a[1]'")
    assert changed(["a", "b"], "a", "a", "b").yielded.startswith("step 'a[1]'")


def test_another_function_or_another_action_under_the_same_path_is_refused():
    error = changed(["a", "b"], "a", "b", function=other)
    assert "yields another step under the path 'a'" in str(error)
    assert "test_replay:work" in error.recorded
    assert "test_replay:other" in error.yielded
    command = StepResult("a", "command", path="a")
    with pytest.raises(WorkflowChangedError, match=r"recorded step 'a' \(command\); now step 'a' \(python"):
        drive(steps("a")[0], [command])


def test_a_function_that_moved_to_another_module_is_the_same():
    moved = StepResult("a", output=1, function="elsewhere.entirely:work")
    assert shown(drive(steps("a")[0], [moved])[0]) == ["Restore a", "Finish done"]


def test_a_step_that_was_recorded_and_is_ephemeral_now_is_noticed():
    def ephemeral_now():
        yield step("a").python(work).ephemeral()

    with pytest.raises(WorkflowChangedError, match="recorded step 'a'"):
        drive(ephemeral_now(), record_of(steps("a")[0]))


def test_a_generator_that_raises_before_the_record_ends_is_changed_and_says_what_it_raised():
    def raising():
        yield step("a").python(work)
        raise KeyError("column")

    with pytest.raises(WorkflowChangedError, match="raises before the record ends") as caught:
        drive(raising(), record_of(steps("a", "b")[0]))
    assert caught.value.yielded == "raise KeyError: 'column'"
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_stop_from_outside_is_no_change_of_the_code():
    def stopped():
        yield step("a").python(work)
        raise KeyboardInterrupt

    commands, _ = drive(stopped(), record_of(steps("a", "b")[0]))
    assert isinstance(commands[-1], Crash)


# --- what is not a step -------------------------------------------------------------------------------------------------


def yielding(thing):
    yield step("a").python(work)
    yield thing


YIELDS = inspect.getsourcelines(yielding)[1] + 2


@pytest.mark.parametrize("thing", [None, 5, "fetch", work, [step("a").python(work)], step])
def test_what_is_no_step_is_refused_with_its_repr_and_its_line(thing):
    generator = yielding(thing)
    with pytest.raises(WorkflowDefinitionError, match=re.escape(f"{thing!r:.120}")) as caught:
        drive(generator)
    assert caught.value.where == f"test_replay.py:{YIELDS}"
    assert inspect.getgeneratorstate(generator) == inspect.GEN_CLOSED


def test_a_step_without_an_action_is_refused_by_its_name():
    with pytest.raises(StepDefinitionError, match="step 'half', which has no action") as caught:
        drive(yielding(step("half").checkpoint()))
    assert caught.value.step == "half"
    assert caught.value.where == f"test_replay.py:{YIELDS}"


def test_a_step_without_an_action_that_is_delegated_to_is_refused_by_its_name_and_line():
    def delegating():
        yield step("a").python(work)
        yield from step("half")

    generator = delegating()
    with pytest.raises(StepDefinitionError, match="step 'half', which has no action") as caught:
        drive(generator)
    assert caught.value.where == f"test_replay.py:{delegating.__code__.co_firstlineno + 2}"


def test_a_yielded_workflow_or_list_of_steps_gets_advice_of_its_own():
    with pytest.raises(WorkflowDefinitionError) as caught:
        drive(yielding(workflow("child")(yielding)))
    assert ".workflow(child" in caught.value.remedy
    with pytest.raises(WorkflowDefinitionError) as caught:
        drive(yielding([step("a").python(work)]))
    assert "parallel(*steps)" in caught.value.remedy


def test_a_yielded_generator_gets_the_advice_to_delegate_to_it():
    with pytest.raises(WorkflowDefinitionError) as caught:
        drive(yielding(yielding(1)))
    assert "yield from" in caught.value.remedy


# --- where a step was yielded ----------------------------------------------------------------------------------------


def inner():
    value = yield step("in").python(work)  # the first line of `inner`
    again = yield from step("in").python(work)
    return value, again


def outer():
    yield step("out").python(work)
    return (yield from inner())


def test_the_line_of_a_step_is_that_of_the_innermost_generator_that_is_the_users():
    commands, _ = drive(outer())
    first_inner, first_outer = (inspect.getsourcelines(function)[1] + 1 for function in (inner, outer))
    assert [c.location for c in commands[:-1]] == [
        f"test_replay.py:{line}" for line in (first_outer, first_inner, first_inner + 1)
    ]
    assert shown(commands)[-1] == "Finish ('IN', 'IN[1]')"


def test_a_change_inside_a_delegated_generator_shows_its_line():
    with pytest.raises(WorkflowChangedError) as caught:
        drive(outer(), record_of(steps("out", "gone")[0]))
    assert caught.value.yielded.endswith(f"{__file__}:{inspect.getsourcelines(inner)[1] + 1}")


# --- closing ---------------------------------------------------------------------------------------------------------


def test_closing_runs_the_finally_blocks_and_gives_back_what_they_raise():
    ran = []

    def careful():
        try:
            yield step("a").python(work)
        finally:
            ran.append("closed")
            raise OSError("in finally")

    replay = Replay(careful(), [], "w")
    replay.start()
    assert isinstance(replay.close(), OSError)
    assert ran == ["closed"]
    assert replay.close() is None


def test_a_generator_that_swallows_its_end_is_told_of_and_does_not_go_on():
    def stubborn():
        try:
            yield step("a").python(work)
        except GeneratorExit:
            yield step("more").python(work)

    replay = Replay(stubborn(), [], "w")
    replay.start()
    assert isinstance(replay.close(), RuntimeError)
    with pytest.raises(WorkflowChangedError):  # the first error wins over the one of closing
        drive(stubborn(), [StepResult("b")])


# --- any deterministic generator, any prefix -------------------------------------------------------------------------

programs = st.recursive(
    st.builds(lambda name, eph: ("step", name, eph), st.sampled_from(["a", "b", "a/b", "x[1]"]), st.booleans()),
    lambda inner: st.one_of(
        st.builds(lambda n, body: ("loop", n, body), st.integers(0, 3), st.lists(inner, max_size=3)),
        st.builds(lambda x, y: ("branch", x, y), st.lists(inner, max_size=2), st.lists(inner, max_size=2)),
        st.builds(lambda body, alt: ("try", body, alt), st.lists(inner, max_size=2), st.lists(inner, max_size=2)),
        st.builds(lambda body: ("delegate", body), st.lists(inner, max_size=2)),
    ),
    max_leaves=8,
)


def run(program, seen):
    """Interpret a program as a workflow would be written; what it does next may depend on every answer so far."""
    for instruction in program:
        match instruction:
            case ("step", name, is_ephemeral):
                begun = step(name).python(work)
                seen.append((yield begun.ephemeral() if is_ephemeral else begun))
            case ("loop", count, body):
                for _ in range(count):
                    yield from run(body, seen)
            case ("branch", left, right):
                yield from run(left if sum(map(int, seen)) % 2 else right, seen)
            case ("try", body, instead):
                try:
                    yield from run(body, seen)
                except StepFailedError:
                    yield from run(instead, seen)
            case ("delegate", body):
                yield from run(body, seen)
    return list(seen)


@given(st.lists(programs, max_size=4), st.lists(st.integers(-1, 5), min_size=1, max_size=7))
@settings(max_examples=150, deadline=None)
def test_any_deterministic_generator_goes_on_from_any_prefix_as_if_nothing_had_happened(program, outcomes):
    def answer(command):
        outcome = outcomes[sum(map(ord, command.path)) % len(outcomes)]  # the same for a path, whenever it is asked
        return failure(command.path) if outcome < 0 and not command.step.modifiers.is_ephemeral else abs(outcome)

    whole, history = drive(run(program, []), answer=answer)
    for kept in range(len(history) + 1):
        commands, again = drive(run(program, []), history[:kept], answer=answer)
        recorded = [c for c in commands[:-1] if not c.step.modifiers.is_ephemeral]
        assert [type(c) for c in recorded] == [Restore] * kept + [Execute] * (len(history) - kept)
        assert [c.path for c in commands[:-1]] == [c.path for c in whole[:-1]]
        assert again == history
        assert shown(commands)[-1] == shown(whole)[-1]


def test_a_step_that_says_how_to_be_adopted_and_never_would_be_is_refused_with_its_place():
    def flow():
        yield step("pay").python(work).adopt(work)

    with pytest.raises(StepDefinitionError, match=r"'pay': it has \.adopt\(\), but no \.at_most_once\(\)") as refused:
        Replay(flow(), [], "w").start()
    assert "test_replay.py:" in refused.value.where


def test_an_ephemeral_step_that_fails_during_a_replay_is_a_failure_and_no_changed_workflow():
    def flow():
        yield step("model").python(work).ephemeral()
        yield step("fetch").python(work)

    replay = Replay(flow(), [StepResult("fetch", function="test_replay:work")], "w")
    command = replay.start()
    assert isinstance(command, Execute)
    crash = replay.throw(failure("model"))
    assert isinstance(crash, Crash) and crash.error.path == "model"
