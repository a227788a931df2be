"""When a checkpoint is asked for besides the explicit ones."""

import logging
import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowckpt import CompositeTrigger, StepCountTrigger, TimeTrigger
from flowckpt.engine.values.options import Progress, asks_for_checkpoint, check_trigger
from flowckpt.errors import SettingError
from flowckpt.testing import FakeClock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LOG = logging.getLogger("test_triggers")


def progress(steps=0, seconds=0.0, results=0):
    return Progress(steps, seconds, results, NOON)


class Says:
    def __init__(self, answer):
        self.answer = answer
        self.asked = 0

    def should_checkpoint(self, progress):
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


YES, NO = Says(True), Says(False)


def saved_at(trigger, clock, seconds_of_steps):
    """After which steps a run takes checkpoints, when its steps take so long."""
    found, since, last_ns = [], 0, clock.elapsed_ns()
    for number, seconds in enumerate(seconds_of_steps, 1):
        clock.advance(seconds)
        since += 1
        seen = Progress(since, (clock.elapsed_ns() - last_ns) / 1e9, number, clock.now())
        if asks_for_checkpoint(trigger, seen, LOG):
            found.append(number)
            since, last_ns = 0, clock.elapsed_ns()
    return found


def test_a_step_count_trigger_asks_after_every_so_many_steps():
    assert saved_at(StepCountTrigger(3), FakeClock(), [1] * 10) == [3, 6, 9]
    assert saved_at(StepCountTrigger(1), FakeClock(), [1] * 4) == [1, 2, 3, 4]


def test_a_time_trigger_asks_when_so_much_time_has_passed_since_the_last_checkpoint():
    assert saved_at(TimeTrigger(60), FakeClock(), [25] * 9) == [3, 6, 9]
    assert saved_at(TimeTrigger(0.5), FakeClock(), [0.25] * 5) == [2, 4]
    assert saved_at(TimeTrigger(timedelta(minutes=1)), FakeClock(), [25] * 9) == [3, 6, 9]
    assert saved_at(TimeTrigger(), FakeClock(), [90] * 4) == [2, 4]
    assert saved_at(TimeTrigger(60), FakeClock(), [300, 1, 59]) == [1, 3]


def test_a_time_trigger_does_not_look_at_the_wall_clock():
    clock = FakeClock()
    clock.set(datetime(1999, 1, 1, tzinfo=UTC))
    assert saved_at(TimeTrigger(10), clock, [5, 5]) == [2]


def test_of_several_triggers_one_is_enough_or_all_are_needed():
    both = [StepCountTrigger(3), TimeTrigger(60)]
    assert saved_at(CompositeTrigger(both), FakeClock(), [10, 10, 10, 70, 10]) == [3, 4]
    assert saved_at(CompositeTrigger(both, mode="all"), FakeClock(), [10, 10, 10, 70, 10]) == [4]
    nested = CompositeTrigger([CompositeTrigger(both, mode="all"), StepCountTrigger(4)])
    assert saved_at(nested, FakeClock(), [1] * 8) == [4, 8]


@given(st.lists(st.booleans(), min_size=1))
def test_any_and_all_are_those_of_python(answers):
    members = [Says(answer) for answer in answers]
    assert CompositeTrigger(members).should_checkpoint(progress()) is any(answers)
    assert CompositeTrigger(members, "all").should_checkpoint(progress()) is all(answers)


def test_a_trigger_keeps_no_state_so_that_one_serves_many_runs():
    trigger = CompositeTrigger([StepCountTrigger(2), TimeTrigger(5)])
    assert [saved_at(trigger, FakeClock(), [1] * 5) for _ in range(2)] == [[2, 4], [2, 4]]
    assert trigger == CompositeTrigger((StepCountTrigger(2), TimeTrigger(5)))
    with pytest.raises(AttributeError):
        trigger.mode = "all"


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, True, "60", None, 10**400])
def test_a_time_that_cannot_be_is_refused_at_once(seconds):
    with pytest.raises(SettingError, match=r"TimeTrigger\(60\)") as refused:
        TimeTrigger(seconds)
    assert refused.value.setting == "seconds"


@pytest.mark.parametrize("steps", [0, -1, 1.0, True, "10", None])
def test_a_number_of_steps_that_cannot_be_is_refused_at_once(steps):
    with pytest.raises(SettingError, match=r"StepCountTrigger\(10\)") as refused:
        StepCountTrigger(steps)
    assert refused.value.setting == "steps"


@pytest.mark.parametrize("members", [[], (), None, 5, "any", [None], [StepCountTrigger], [lambda progress: True], [5]])
def test_a_composite_of_what_is_no_trigger_is_refused_at_once(members):
    with pytest.raises(SettingError):
        CompositeTrigger(members)


@pytest.mark.parametrize("mode", ["some", "", None, True, "ANY"])
def test_a_mode_that_does_not_exist_is_refused_at_once(mode):
    with pytest.raises(SettingError, match="'any' or 'all'"):
        CompositeTrigger([YES], mode=mode)


def test_an_async_trigger_is_refused_because_its_answer_would_always_look_like_yes():
    class Async:
        async def should_checkpoint(self, progress):
            return False

    with pytest.raises(SettingError, match="not async"):
        check_trigger(Async())
    assert check_trigger(YES) is YES


def test_a_trigger_that_raises_is_told_to_the_log_and_means_no(caplog):
    assert asks_for_checkpoint(Says(ValueError("half broken")), progress(), LOG) is False
    assert "Says: it raised ValueError('half broken')" in caplog.text


@pytest.mark.parametrize("answer", [None, 1, "yes", []])
def test_an_answer_that_is_neither_yes_nor_no_is_told_to_the_log_and_means_no(caplog, answer):
    assert asks_for_checkpoint(Says(answer), progress(), LOG) is False
    assert f"it returned {answer!r}, not True or False" in caplog.text


def test_a_member_that_raises_does_not_keep_the_others_from_asking():
    broken = Says(ValueError("broken"))
    assert CompositeTrigger([broken, NO, YES]).should_checkpoint(progress()) is True
    assert CompositeTrigger([NO, broken], "all").should_checkpoint(progress()) is False
    for trigger in (CompositeTrigger([broken, NO]), CompositeTrigger([YES, broken], "all")):
        with pytest.raises(ValueError, match="broken"):
            trigger.should_checkpoint(progress())


def test_what_is_wrong_is_told_once_and_names_the_member_of_a_composite(caplog):
    trigger, told = CompositeTrigger([NO, Says(ValueError("broken"))]), set()
    for _ in range(3):
        assert asks_for_checkpoint(trigger, progress(), LOG, told) is False
    assert asks_for_checkpoint(Says("yes"), progress(), LOG, told) is False
    assert [record.getMessage() for record in caplog.records] == [
        "no checkpoint is taken for Says: it raised ValueError('broken')",
        "no checkpoint is taken for Says: it returned 'yes', not True or False",
    ]


def test_what_is_no_exception_is_not_caught():
    class Stop(Says):
        def should_checkpoint(self, progress):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asks_for_checkpoint(Stop(True), progress(), LOG)
