"""The log of a task against a plain model: any order of commits, rollbacks and removals."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from flowckpt.maintenance.task_log import CommittedStep, TaskLog

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
CLAIM = {"pack": {"evidence": [{}]}, "outcome": "verified"}


def committed(log, number, *, is_verified=False, item=None):
    evidence = CLAIM if is_verified else None
    return CommittedStep(
        f"t@s{number}",
        "t",
        f"t@[{number}]",
        f"s{number}",
        "kind",
        item,
        {},
        number,
        NOON,
        NOON,
        0.0,
        log.head,
        evidence,
    )


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["commit", "claim", "rollback", "remove"]), st.integers(0, 30)), max_size=40
)


@given(ACTIONS)
def test_the_steps_that_led_to_a_checkpoint_are_those_that_a_model_remembers(actions):
    log, ways, way, live = TaskLog("t"), {}, [], []
    for action, number in actions:
        if action in ("commit", "claim"):
            step = committed(log, len(log.committed), is_verified=action == "claim")
            log.add(step)
            way = [*way, step.id]
            ways[step.id] = way
            live.append(step.id)
        elif live:
            chosen = live[number % len(live)]
            if action == "rollback":
                log.head, way = log.live[chosen.partition("@")[2]], ways[chosen]
            else:
                live.remove(chosen)
                del log.live[chosen.partition("@")[2]]
        assert [step.id for step in log.chain(log.head)] == way
        assert [step.id for step in log.live_steps()] == live[::-1]
        assert [step.id for step in log.live_chain(log.head)] == [each for each in reversed(way) if each in live]
        current = log.find_current()
        assert (log.committed[current].id if current >= 0 else None) == next(
            (each for each in reversed(way) if each in live), None
        )


@given(ACTIONS, st.integers(1, 6))
def test_what_is_removed_leaves_enough_and_never_what_is_needed(actions, most):
    log = TaskLog("t")
    for action, number in actions:
        if action in ("commit", "claim"):
            log.add(committed(log, len(log.committed), is_verified=action == "claim"))
        elif log.live and action == "rollback":
            log.head = sorted(log.live.values())[number % len(log.live)]
    steps = log.live_steps()
    verified = next((step for step in steps if step.verified), None)
    gone = log.list_surplus(most, verified)
    kept = [step for step in steps if step not in gone]
    assert len(kept) >= min(most, len(steps))
    assert len(kept) <= max(most, 3)
    if steps:
        assert kept[0] is steps[0]
        assert log.committed[log.find_current()] in kept
    if verified is not None:
        assert verified in kept


@given(st.lists(st.sampled_from("abc")), st.lists(st.tuples(st.sampled_from([None, "a", "b", "x"]))))
def test_what_remains_and_what_was_crossed_off_make_up_the_plan(plan, done):
    log = TaskLog("t", plan=tuple(plan))
    for number, (item,) in enumerate(done):
        log.add(committed(log, number, item=item))
    left = list(plan)
    for (item,) in done:
        if item in left:
            left.remove(item)
    assert sorted(log.remaining(log.head)) == sorted(left)
    assert log.remaining(-1) == tuple(plan)
