"""What follows when a recorded result is stale, and what is done with a step that may have been done: rules as tables."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest

from flowckpt import RunOptions, step
from flowckpt.core.records import StepResult
from flowckpt.engine.rules.in_doubt import (
    Question,
    Settlement,
    is_same_call,
    open_question,
    settle_done,
    settle_started,
)
from flowckpt.engine.rules.reasons import OnStale, Reason, ReasonKind, ResumePolicy, ReuseMode
from flowckpt.errors import InputError
from flowckpt.evidence import artifact_exists
from flowckpt.evidence.claims import EvidencePack
from flowckpt.evidence.report import Verdict, VerdictStatus, VerificationReport, decide

RERUN, REUSE, FAIL = OnStale.RERUN, OnStale.REUSE, OnStale.FAIL
ANSWERS = (None, RERUN, REUSE, FAIL)
CODE_ANSWERS = (FAIL, RERUN, REUSE)

GONE = Reason(ReasonKind.EVIDENCE, "rows.csv does not exist")
UNSURE = Reason(ReasonKind.EVIDENCE, "the server did not answer", is_proved=False)
ARGUMENTS = Reason(ReasonKind.ARGUMENTS, "limit: 1 → 2")
VERSION = Reason(ReasonKind.VERSION, "recorded 'a', now 'b'")
CODE = Reason(ReasonKind.CODE, "fetch() was edited")
FROM = Reason(ReasonKind.FORCED, "everything from this step on runs again")
UPSTREAM = Reason(ReasonKind.UPSTREAM, "fetch runs again before it")
FAILED = Reason(ReasonKind.FAILED, "it failed, and that ended the run")
STARTED = Reason(ReasonKind.STARTED, "it was started")


def policy(on_stale: OnStale | None = None, on_code_change: OnStale = FAIL, *, is_forced: bool = False) -> ResumePolicy:
    return ResumePolicy(on_stale=on_stale, on_code_change=on_code_change, is_forced=is_forced)


# --- one reason -------------------------------------------------------------------------------------------------------

#             on_stale: not given, rerun, reuse, fail
ON_STALE = {
    "moved evidence": (GONE, (RERUN, RERUN, REUSE, FAIL)),
    "evidence that cannot be checked": (UNSURE, (FAIL, RERUN, REUSE, FAIL)),
    "moved arguments": (ARGUMENTS, (RERUN, RERUN, REUSE, FAIL)),
    "another version": (VERSION, (RERUN, RERUN, REUSE, FAIL)),
    "asked for": (FROM, (RERUN, RERUN, RERUN, RERUN)),
    "a rerun before it": (UPSTREAM, (RERUN, RERUN, RERUN, RERUN)),
    "its failure": (FAILED, (RERUN, RERUN, RERUN, RERUN)),
    "its start": (STARTED, (RERUN, RERUN, RERUN, RERUN)),
}


@pytest.mark.parametrize("is_forced", [False, True], ids=["", "forced"])
@pytest.mark.parametrize("on_code_change", CODE_ANSWERS)
@pytest.mark.parametrize(("reason", "answers"), ON_STALE.values(), ids=ON_STALE)
def test_facts_are_answered_by_on_stale_whatever_is_said_of_code(
    reason: Reason, answers: tuple[OnStale, ...], on_code_change: OnStale, is_forced: bool
) -> None:
    for on_stale, answer in zip(ANSWERS, answers, strict=True):
        expected = RERUN if is_forced and answer is FAIL else answer
        assert policy(on_stale, on_code_change, is_forced=is_forced).decide([reason]) is expected, on_stale


@pytest.mark.parametrize("is_forced", [False, True], ids=["", "forced"])
@pytest.mark.parametrize("on_stale", ANSWERS)
def test_edited_code_is_answered_by_on_code_change_whatever_is_said_of_facts(
    on_stale: OnStale | None, is_forced: bool
) -> None:
    stops = RERUN if is_forced else FAIL
    for on_code_change, expected in ((FAIL, stops), (RERUN, RERUN), (REUSE, REUSE)):
        assert policy(on_stale, on_code_change, is_forced=is_forced).decide([CODE]) is expected


@pytest.mark.parametrize("is_forced", [False, True], ids=["", "forced"])
@pytest.mark.parametrize(("on_stale", "on_code_change"), list(itertools.product(ANSWERS, CODE_ANSWERS)))
def test_a_result_that_nothing_speaks_against_is_reused_under_every_policy(
    on_stale: OnStale | None, on_code_change: OnStale, is_forced: bool
) -> None:
    assert policy(on_stale, on_code_change, is_forced=is_forced).decide([]) is REUSE


# --- several reasons --------------------------------------------------------------------------------------------------

SEVERAL = [  # reasons, on_stale, on_code_change, the answer, the answer of a resume that is forced
    ((CODE, GONE), None, FAIL, FAIL, RERUN),
    ((CODE, GONE), RERUN, FAIL, FAIL, RERUN),
    ((CODE, GONE), FAIL, RERUN, FAIL, RERUN),
    ((CODE, GONE), FAIL, REUSE, FAIL, RERUN),
    ((CODE, GONE), None, REUSE, RERUN, RERUN),
    ((CODE, GONE), REUSE, RERUN, RERUN, RERUN),
    ((CODE, GONE), REUSE, REUSE, REUSE, REUSE),
    ((CODE, UNSURE), None, REUSE, FAIL, RERUN),
    ((CODE, UNSURE), None, RERUN, FAIL, RERUN),
    ((GONE, UNSURE), None, FAIL, FAIL, RERUN),
    ((GONE, UNSURE), REUSE, FAIL, REUSE, REUSE),
    ((ARGUMENTS, VERSION), REUSE, FAIL, REUSE, REUSE),
    ((FROM, CODE), None, FAIL, RERUN, RERUN),
    ((FROM, GONE, CODE), FAIL, FAIL, RERUN, RERUN),
    ((FROM, UNSURE), None, FAIL, RERUN, RERUN),
    ((UPSTREAM, GONE), REUSE, FAIL, RERUN, RERUN),
    ((UPSTREAM, CODE), None, FAIL, FAIL, RERUN),
]


@pytest.mark.parametrize(("reasons", "on_stale", "on_code_change", "answer", "forced"), SEVERAL)
def test_the_heaviest_answer_wins_in_whatever_order_the_reasons_stand(
    reasons: tuple[Reason, ...],
    on_stale: OnStale | None,
    on_code_change: OnStale,
    answer: OnStale,
    forced: OnStale,
) -> None:
    for order in itertools.permutations(reasons):
        assert policy(on_stale, on_code_change).decide(iter(order)) is answer
        assert policy(on_stale, on_code_change, is_forced=True).decide(iter(order)) is forced


# --- how it is said ---------------------------------------------------------------------------------------------------


def test_what_is_not_said_stops_at_code_and_runs_the_rest_of_the_prefix_again() -> None:
    assert RunOptions().policy == ResumePolicy(
        on_stale=None, on_code_change=FAIL, reuse=ReuseMode.PREFIX, from_path="", is_forced=False
    )


def test_what_is_said_in_words_reaches_the_policy() -> None:
    said = RunOptions(on_stale="reuse", on_code_change="rerun", reuse="inputs", from_step="b", force=True)
    assert said.policy == ResumePolicy(
        on_stale=REUSE, on_code_change=RERUN, reuse=ReuseMode.INPUTS, from_path="b", is_forced=True
    )


@pytest.mark.parametrize("name", ["on_stale", "on_code_change", "reuse"])
@pytest.mark.parametrize("value", ["", "RERUN", "maybe", True, 1])
def test_an_answer_that_there_is_not_is_refused_by_its_name(name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"{name}=") as refused:
        RunOptions(**{name: value})  # type: ignore[arg-type]
    assert refused.value.parameter == name


# --- steps that may have been done ------------------------------------------------------------------------------------

YES, NO, NOBODY, LATER = (
    VerdictStatus.VERIFIED,
    VerdictStatus.FAILED,
    VerdictStatus.CANNOT_CHECK,
    VerdictStatus.NOT_RECHECKED,
)
ALL = {"require_all": True}
ONE_OF = {"require_all": False, "allow_partial": True, "min_verified": 1}
TWO_OF = {"require_all": False, "allow_partial": True, "min_verified": 2}

ONCE = step("pay").python(abs, -1).at_most_once()
SETTLEMENTS = [  # policy, answers, what is done: run, ask, or rely on it
    (ALL, (YES,), None),
    (ALL, (YES, YES), None),
    (ALL, (NO,), Settlement.RUN),
    (ALL, (YES, NO), Settlement.RUN),
    (ALL, (NOBODY,), Settlement.ASK),
    (ALL, (YES, NOBODY), Settlement.ASK),
    (ALL, (NO, NOBODY), Settlement.RUN),
    (ALL, (), Settlement.ASK),
    (ALL, (LATER,), Settlement.ASK),
    (ALL, (VerdictStatus.UNCAPTURED,), Settlement.ASK),
    (ALL, (VerdictStatus.TIMED_OUT,), Settlement.ASK),
    (ALL, (VerdictStatus.REFUSED,), Settlement.ASK),
    (ALL, (VerdictStatus.MALFORMED,), Settlement.ASK),
    (ALL, (VerdictStatus.DISAGREEMENT,), Settlement.ASK),
    (ONE_OF, (YES, NO), None),
    (ONE_OF, (NO, NOBODY), Settlement.ASK),
    (ONE_OF, (NO, NO), Settlement.RUN),
    (TWO_OF, (YES, NO, NOBODY), Settlement.ASK),
    (TWO_OF, (YES, NO, NO), Settlement.RUN),
]


def report(policy_of_pack: dict[str, object], answers: tuple[VerdictStatus, ...]) -> VerificationReport:
    claims = [artifact_exists(f"file{number}") for number in range(len(answers))]
    pack = EvidencePack(claims, **policy_of_pack)  # type: ignore[arg-type]
    now = datetime(2026, 1, 1, tzinfo=UTC)
    verdicts = [
        Verdict(claim, answer, None if answer is YES else f"{answer}", now)
        for claim, answer in zip(claims, answers, strict=True)
    ]
    return VerificationReport(*_decided(pack, answers, verdicts))


def _decided(pack: EvidencePack, answers: tuple[VerdictStatus, ...], verdicts: list[Verdict]) -> Any:
    outcome, reason = decide(pack, answers)
    return outcome, verdicts, reason


@pytest.mark.parametrize(("pack", "answers", "settlement"), SETTLEMENTS)
def test_only_a_proof_is_relied_on_only_a_denial_is_run_and_all_else_is_asked(
    pack: dict[str, object], answers: tuple[VerdictStatus, ...], settlement: Settlement | None
) -> None:
    found = report(pack, answers)
    assert settle_started(found) is (settlement or Settlement.ADOPT)
    assert settle_done(ONCE, found, ResumePolicy()) is (settlement or Settlement.REUSE)


@pytest.mark.parametrize(("pack", "answers", "settlement"), SETTLEMENTS)
def test_where_another_may_still_be_at_it_a_denial_proves_nothing(
    pack: dict[str, object], answers: tuple[VerdictStatus, ...], settlement: Settlement | None
) -> None:
    expected = Settlement.ADOPT if settlement is None else Settlement.ASK
    assert settle_started(report(pack, answers), may_be_running=True) is expected


SAME_CALLS = [  # recorded arguments and version, those of now, whether it is the same effect
    (({"amount": 5}, None), ({"amount": 5}, None), True),
    (({"amount": 5, "to": "x"}, None), ({"to": "x", "amount": 5}, None), True),
    (({"amount": 5}, None), ({"amount": 6}, None), False),
    (({"amount": 1}, None), ({"amount": True}, None), False),
    (({"amount": 1}, None), ({"amount": 1.0}, None), False),
    (({"amount": 5}, None), ({"amount": 5, "to": "x"}, None), False),
    (({"amount": 5, "to": "x"}, None), ({"amount": 5}, None), False),
    (({"connection": "?"}, None), ({"connection": "?"}, None), True),
    (({"amount": 5}, "a"), ({"amount": 5}, "a"), True),
    (({"amount": 5}, None), ({"amount": 5}, "a"), False),
    (({"amount": 5}, "a"), ({"amount": 5}, "b"), False),
]


@pytest.mark.parametrize(("recorded", "now", "is_same"), SAME_CALLS)
def test_the_same_effect_is_the_same_arguments_under_the_same_version(recorded: Any, now: Any, is_same: bool) -> None:
    result = StepResult("pay", arguments=recorded[0], version=recorded[1], fingerprint="1:edited since")
    assert is_same_call(result, *now) is is_same


DONE = StepResult("pay", arguments={"amount": 5}, attempt=1)
FAILED_ONCE = StepResult("pay", arguments={"amount": 5}, attempt=1, success=False)
QUESTIONS = [  # its earlier result, its amount now, whether it is in doubt, whether it is asked for, what must be known
    (None, 5, False, False, Question.NONE),
    (None, 5, True, False, Question.STARTED),
    (None, 5, True, True, Question.STARTED),
    (None, 5, False, True, Question.NONE),
    (DONE, 5, False, False, Question.DONE),
    (DONE, 6, False, False, Question.MOVED),
    (DONE, 5, True, False, Question.STARTED),
    (DONE, 6, True, False, Question.STARTED),
    (DONE, 5, False, True, Question.NONE),
    (DONE, 5, True, True, Question.STARTED),
    (FAILED_ONCE, 5, False, False, Question.STARTED),
    (FAILED_ONCE, 6, False, False, Question.STARTED),
    (FAILED_ONCE, 5, False, True, Question.NONE),
]


@pytest.mark.parametrize(("old", "amount", "is_in_doubt", "is_asked_for", "question"), QUESTIONS)
def test_what_must_be_known_before_a_step_is_run_that_must_not_be_done_twice(
    old: StepResult | None, amount: int, is_in_doubt: bool, is_asked_for: bool, question: Question
) -> None:
    plain = step("pay").python(abs, amount)
    told = policy() if not is_asked_for else ResumePolicy(from_path="pay")
    asked = {"is_moved": amount != 5, "is_in_doubt": is_in_doubt}
    assert open_question(plain.at_most_once(), "pay", old, told, **asked) is question
    assert open_question(plain, "pay", old, told, **asked) is Question.NONE
    again = plain.at_most_once().on_rerun(print)  # another call undoes the first one
    assert open_question(again, "pay", old, told, **asked) is (
        Question.NONE if question is Question.MOVED else question
    )


@pytest.mark.parametrize("amount", [5, 6])
@pytest.mark.parametrize(
    "told", [{"on_stale": RERUN}, {"on_code_change": RERUN}, {"is_forced": True}, {"from_path": "a"}]
)
def test_a_step_that_can_be_undone_and_was_not_is_repeated_only_on_request(amount: int, told: dict[str, Any]) -> None:
    undoable = step("pay").python(abs, amount).rollback(print)
    for each in (FAILED_ONCE, None):
        assert open_question(undoable, "pay", each, policy(), is_moved=amount != 5) is Question.NONE
    asked = Question.MOVED if amount == 6 else Question.DONE
    assert open_question(undoable, "pay", DONE, policy(), is_moved=amount != 5) is asked
    assert open_question(undoable, "pay", DONE, ResumePolicy(**told), is_moved=amount != 5) is Question.NONE


def test_no_default_repeats_what_was_done() -> None:
    for reason, answer in (
        (ARGUMENTS, FAIL),
        (VERSION, FAIL),
        (CODE, FAIL),
        (GONE, RERUN),
        (UNSURE, FAIL),
        (FROM, RERUN),
    ):
        assert policy().decide([reason], is_done=True) is answer
    for chosen in (RERUN, REUSE):
        assert policy(chosen).decide([ARGUMENTS, VERSION], is_done=True) is chosen
        assert policy(on_code_change=chosen).decide([CODE], is_done=True) is chosen
    assert policy(is_forced=True).decide([ARGUMENTS], is_done=True) is RERUN
