"""Why a recorded result is not simply reused, and the plan that says so: values, sentences and documents."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from flowckpt import step
from flowckpt.core.identity.call import identify
from flowckpt.core.records import StepResult
from flowckpt.engine.rules.judge import Judge, evidence_reasons
from flowckpt.engine.rules.plan import Decision, PlannedStep, ResumePlan
from flowckpt.engine.rules.reasons import Reason, ReasonKind, ResumePolicy
from flowckpt.evidence import artifact_exists
from flowckpt.evidence.claims import EvidencePack
from flowckpt.evidence.report import Verdict, VerdictStatus, VerificationReport, decide

YES, NO, NOBODY, LATER = (
    VerdictStatus.VERIFIED,
    VerdictStatus.FAILED,
    VerdictStatus.CANNOT_CHECK,
    VerdictStatus.NOT_RECHECKED,
)
ALL: dict[str, Any] = {"require_all": True}
ONE_OF: dict[str, Any] = {"require_all": False, "allow_partial": True, "min_verified": 1}
TWO_OF: dict[str, Any] = {"require_all": False, "allow_partial": True, "min_verified": 2}


def report(policy: dict[str, Any], *answers: VerdictStatus, details: tuple[str, ...] = ()) -> VerificationReport:
    claims = [artifact_exists(f"file{number}") for number in range(len(answers))]
    now = datetime(2026, 1, 1, tzinfo=UTC)
    verdicts = [
        Verdict(claim, answer, None if answer is YES else f"{number} {answer}", now, details)
        for number, (claim, answer) in enumerate(zip(claims, answers, strict=True))
    ]
    outcome, reason = decide(EvidencePack(claims, **policy), answers)
    return VerificationReport(outcome, verdicts, reason)


# --- evidence ---------------------------------------------------------------------------------------------------------

REPORTS: list[tuple[VerificationReport, list[tuple[str, bool]]]] = [
    (report(ALL, YES), []),
    (report(ALL, YES, LATER), []),
    (report(ALL, LATER), []),
    (report(ALL), []),
    (report(ALL, NO), [("0 failed", True)]),
    (report(ALL, YES, NO, LATER), [("1 failed", True)]),
    (report(ALL, NOBODY), [("0 cannot_check", False)]),
    (report(ALL, YES, NOBODY), [("1 cannot_check", False)]),
    (report(ALL, NO, NOBODY), [("0 failed", True), ("1 cannot_check", True)]),
    (report(ALL, VerdictStatus.TIMED_OUT), [("0 timed_out", False)]),
    (report(ALL, VerdictStatus.REFUSED), [("0 refused", False)]),
    (report(ALL, VerdictStatus.MALFORMED), [("0 malformed", False)]),
    (report(ALL, VerdictStatus.DISAGREEMENT), [("0 disagreement", False)]),
    (report(ALL, VerdictStatus.UNCAPTURED), [("0 uncaptured", False)]),
    (report(ONE_OF, YES, NO), []),
    (report(ONE_OF, NO, NO), [("0 failed", True), ("1 failed", True)]),
    (report(ONE_OF, NO, NOBODY), [("0 failed", False), ("1 cannot_check", False)]),
    (report(TWO_OF, YES, NO, NOBODY), [("1 failed", False), ("2 cannot_check", False)]),
    (report(TWO_OF, YES, NO, NO), [("1 failed", True), ("2 failed", True)]),
    (report(ALL, NO, details=("rows[0].state: 'new'", "rows[1]: is missing")),
     [("0 failed; rows[0].state: 'new'; rows[1]: is missing", True)]),
]  # fmt: skip


@pytest.mark.parametrize(("found", "expected"), REPORTS)
def test_each_claim_against_is_a_reason_and_proved_only_where_the_pack_is_denied(
    found: VerificationReport, expected: list[tuple[str, bool]]
) -> None:
    assert [(reason.detail, reason.is_proved) for reason in evidence_reasons(found)] == expected
    assert all(reason.kind is ReasonKind.EVIDENCE and reason.makes_stale for reason in evidence_reasons(found))


def test_a_report_without_a_word_for_any_claim_gives_its_own() -> None:
    denied = report(ALL, NO)
    silent = VerificationReport(denied.outcome, [], "0 of 1 claims hold, 1 required")
    assert evidence_reasons(silent) == (Reason(ReasonKind.EVIDENCE, "0 of 1 claims hold, 1 required", is_proved=True),)


# --- the judge --------------------------------------------------------------------------------------------------------


def pay(amount: int) -> int:
    return amount


def result_of(made: Any, path: str = "pay") -> StepResult:
    return StepResult(
        "pay",
        path=path,
        arguments=identify(made.action).arguments,
        fingerprint=identify(made.action).fingerprint,
        version=made.modifiers.version,
    )


PLAIN = step("pay").python(pay, 5)


def test_the_judge_brings_together_what_moved_in_the_step_in_the_world_and_what_was_asked_for() -> None:
    judge = Judge(ResumePolicy(from_path="pay"), {"pay": report(ALL, NO), "other": report(ALL, NO)})
    changed = PLAIN.version("b")
    assert [reason.kind for reason in judge.reasons(changed, result_of(PLAIN))] == ["version", "evidence", "forced"]
    assert [reason.kind for reason in judge.reasons(PLAIN, result_of(PLAIN, "pay[1]"))] == []
    assert [reason.kind for reason in judge.reasons(PLAIN, result_of(PLAIN, "other"))] == ["evidence"]


ONCE = PLAIN.at_most_once()
PROVED = {"pay": report(ALL, YES)}
DONE = [  # the step now, the answers, the policy, whether it is proved done
    (ONCE, PROVED, ResumePolicy(), True),
    (PLAIN, PROVED, ResumePolicy(), False),
    (ONCE, {}, ResumePolicy(), False),
    (ONCE, {"pay": report(ALL, NO)}, ResumePolicy(), False),
    (ONCE, {"pay": report(ALL, NOBODY)}, ResumePolicy(), False),
    (ONCE, {"pay": report(ALL, LATER)}, ResumePolicy(), False),
    (ONCE, PROVED, ResumePolicy(from_path="pay"), False),
    (ONCE, PROVED, ResumePolicy(from_path="elsewhere"), True),
    (ONCE, PROVED, ResumePolicy(is_forced=True), True),
    (ONCE.version("b"), PROVED, ResumePolicy(), False),
    (step("pay").python(pay, 6).at_most_once(), PROVED, ResumePolicy(), False),
    (step("pay").python(abs, 5).at_most_once(), PROVED, ResumePolicy(), False),
]


@pytest.mark.parametrize(("now", "reports", "policy", "is_done"), DONE)
def test_an_edit_does_not_undo_what_was_done_once_but_another_call_is_another_effect(
    now: Any, reports: Any, policy: ResumePolicy, is_done: bool
) -> None:
    assert Judge(policy, reports).proves_done(now, result_of(PLAIN)) is is_done


# --- as text and as documents -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "makes_stale"),
    [
        ("evidence", True),
        ("reads", True),
        ("packages", False),
        ("arguments", True),
        ("code", True),
        ("version", True),
        ("nondeterminism", True),
        ("forced", False),
        ("upstream", False),
        ("failed", False),
        ("handled", False),
        ("started", False),
        ("undone", False),
        ("undoing", False),
        ("cached", False),
    ],
)
def test_what_moved_makes_stale_and_what_was_asked_for_does_not(kind: str, makes_stale: bool) -> None:
    reason = Reason(ReasonKind(kind), "so it is")
    assert reason.makes_stale is makes_stale
    assert str(reason) == f"{kind}: so it is"
    assert reason.to_document() == {"kind": kind, "detail": "so it is"}


def test_every_kind_of_reason_is_in_the_table_above() -> None:
    assert len(ReasonKind) == 15


GONE = Reason(ReasonKind.EVIDENCE, "rows.csv does not exist")
BEFORE = Reason(ReasonKind.UPSTREAM, "fetch runs again before it")
ASIDE = PlannedStep("aside", Decision.REUSE, (GONE,), duration_ms=1.5, location="flow.py:3")
KEPT = PlannedStep("kept", Decision.REUSE, duration_ms=1.0)
FETCH = PlannedStep("fetch", Decision.RERUN, (GONE,), duration_ms=2.5, location="flow.py:4")
CLEAN = PlannedStep("clean", Decision.RERUN, (BEFORE,), assumes=("fetch",))
SEND = PlannedStep("send", Decision.IN_DOUBT, (GONE, Reason(ReasonKind.STARTED, "it was started")))
LOAD = PlannedStep("load", Decision.NEW, assumes=("fetch", "clean"))


def plan(*steps: PlannedStep, **rest: str) -> ResumePlan:
    return ResumePlan("monday", "etl", steps, **rest)


def test_a_plan_is_written_down_whole() -> None:
    document = plan(ASIDE, FETCH, CLEAN, LOAD, ends_at="the output of 'load' is not known yet").to_document()
    assert document == {
        "workflow_id": "monday",
        "workflow_name": "etl",
        "steps": [
            {
                "path": "aside",
                "decision": "reuse",
                "reasons": [{"kind": "evidence", "detail": "rows.csv does not exist"}],
                "duration_ms": 1.5,
                "location": "flow.py:3",
            },
            {
                "path": "fetch",
                "decision": "rerun",
                "reasons": [{"kind": "evidence", "detail": "rows.csv does not exist"}],
                "duration_ms": 2.5,
                "location": "flow.py:4",
            },
            {
                "path": "clean",
                "decision": "rerun",
                "reasons": [{"kind": "upstream", "detail": "fetch runs again before it"}],
                "assumes": ["fetch"],
                "duration_ms": None,
                "location": "",
            },
            {
                "path": "load",
                "decision": "new",
                "reasons": [],
                "assumes": ["fetch", "clean"],
                "duration_ms": None,
                "location": "",
            },
        ],
        "stale": 2,
        "ends_at": "the output of 'load' is not known yet",
        "stops": "",
        "undoing": False,
        "ends_otherwise": "",
        "handled": None,
    }
    assert json.loads(json.dumps(document)) == document


def test_stale_counts_results_that_are_no_longer_true_and_no_others() -> None:
    assert [each.is_stale for each in (ASIDE, KEPT, FETCH, CLEAN, SEND, LOAD)] == [
        True,
        False,
        True,
        False,
        False,
        False,
    ]
    assert plan(KEPT, FETCH, CLEAN, SEND, LOAD).stale == 1


def test_there_is_nothing_to_do_where_all_is_reused_and_nothing_stops() -> None:
    assert plan(KEPT, ASIDE).is_nothing_to_do
    assert not plan(KEPT, stops="kept: it moved", stopped_by="kept").is_nothing_to_do
    for each in (FETCH, SEND, LOAD, PlannedStep("old", Decision.ORPHANED)):
        assert not plan(KEPT, each).is_nothing_to_do


def test_a_plan_names_the_stale_step_that_it_stops_at_and_no_doubt_and_no_changed_workflow() -> None:
    assert plan(KEPT, FETCH, stops="fetch: it moved", stopped_by="fetch").stale_stop is FETCH
    assert plan(KEPT, FETCH, stopped_by="fetch").stale_stop is None
    assert plan(KEPT, SEND, stops="send: nobody knows", stopped_by="send").stale_stop is None
    assert plan(KEPT, FETCH, stops="the workflow changed", stopped_by="step 'new'").stale_stop is None


def test_steps_are_found_by_path_and_counted_by_decision() -> None:
    made = plan(KEPT, ASIDE, FETCH, CLEAN, SEND)
    assert made.step("fetch") is FETCH
    assert made.step("nowhere") is None
    assert [made.count(each) for each in Decision] == [2, 2, 0, 1, 0, 0, 0, 0, 0]
