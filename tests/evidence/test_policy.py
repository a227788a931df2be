"""When a pack holds. Pitfall 31."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowckpt.evidence import Evidence, EvidenceError, EvidencePack, PackOutcome, VerdictStatus, command_exit
from flowckpt.evidence.report import decide

V, F, C, M, N = (
    VerdictStatus.VERIFIED,
    VerdictStatus.FAILED,
    VerdictStatus.CANNOT_CHECK,
    VerdictStatus.MALFORMED,
    VerdictStatus.NOT_RECHECKED,
)
ALL, SOME = {}, {"allow_partial": True}


@pytest.mark.parametrize(
    ("answers", "policy", "outcome"),
    [
        ([], ALL, "no_evidence"),
        ([], SOME, "no_evidence"),
        ([], {"require_all": False}, "no_evidence"),
        ([V], ALL, "verified"),
        ([F], ALL, "failed"),
        ([C], ALL, "cannot_tell"),
        ([V, V], ALL, "verified"),
        ([V, F], ALL, "failed"),
        ([V, C], ALL, "cannot_tell"),
        ([F, C], ALL, "failed"),
        ([V, M], ALL, "cannot_tell"),
        ([F], SOME, "failed"),
        ([F, F, F], SOME, "failed"),  # a minimum of 0 with every claim failed
        ([F, F], {"require_all": False}, "failed"),
        ([F, F], {"require_all": False, "allow_partial": True, "min_verified": 0}, "failed"),
        ([F, V], SOME, "verified"),
        ([F, C], SOME, "cannot_tell"),
        ([F, V, V], {**SOME, "min_verified": 2}, "verified"),
        ([F, F, V], {**SOME, "min_verified": 2}, "failed"),
        ([F, C, V], {**SOME, "min_verified": 2}, "cannot_tell"),
        ([V, V, F], {"require_all": False, "min_verified": 2}, "verified"),
        ([V, V, F], {"require_all": True, "min_verified": 2}, "failed"),
        ([N], ALL, "no_evidence"),
        ([N, N], SOME, "no_evidence"),
        ([N, V], ALL, "verified"),
        ([N, F], ALL, "failed"),
        ([N, N, V], {**SOME, "min_verified": 3}, "verified"),
        ([N, F, V], {**SOME, "min_verified": 2}, "failed"),
    ],
)
def test_policies(answers, policy, outcome):
    pack = EvidencePack([command_exit(0)] * len(answers), **policy)
    assert decide(pack, answers)[0] == outcome


answers_of_packs = st.lists(st.sampled_from(list(VerdictStatus)), max_size=6)


@st.composite
def judged_packs(draw):
    answers = draw(answers_of_packs)
    pack = EvidencePack(
        [command_exit(0)] * len(answers), draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, len(answers)))
    )
    return pack, answers


@given(judged_packs(), st.data())
def test_more_verified_claims_never_unverify_a_pack(judged, data):
    pack, answers = judged
    before, _ = decide(pack, answers)
    checked = [index for index, answer in enumerate(answers) if answer is not N]
    better = list(answers)
    for index in data.draw(st.lists(st.sampled_from(checked), unique=True)) if checked else []:
        better[index] = V
    after, _ = decide(pack, better)
    order = [PackOutcome.FAILED, PackOutcome.CANNOT_TELL, PackOutcome.VERIFIED]
    if before is PackOutcome.NO_EVIDENCE:
        assert after is before
    else:
        assert order.index(after) >= order.index(before)


@given(judged_packs())
def test_nothing_verified_is_never_verified(judged):
    pack, answers = judged
    outcome, reason = decide(pack, [answer if answer is not V else F for answer in answers])
    assert outcome is not PackOutcome.VERIFIED
    assert reason


@given(judged_packs())
def test_cannot_tell_means_that_the_unknown_would_decide(judged):
    pack, answers = judged
    known = (V, F, N)
    best = [answer if answer in known else V for answer in answers]
    if decide(pack, answers)[0] is PackOutcome.CANNOT_TELL:
        assert decide(pack, best)[0] is PackOutcome.VERIFIED
    if decide(pack, answers)[0] is PackOutcome.FAILED:
        assert decide(pack, best)[0] is PackOutcome.FAILED


@pytest.mark.parametrize("minimum", [-1, 3, True, 1.0, "1", None])
def test_a_minimum_that_could_never_or_always_hold_is_refused(minimum):
    with pytest.raises(EvidenceError):
        EvidencePack([command_exit(0)] * 2, allow_partial=True, min_verified=minimum)


@pytest.mark.parametrize("claims", [command_exit(0), [1], ["file_sha256"], [None]])
def test_a_pack_holds_claims(claims):
    with pytest.raises(EvidenceError):
        EvidencePack(claims)


@pytest.mark.parametrize("flag", [1, 0, None, "yes"])
def test_a_flag_is_a_flag(flag):
    with pytest.raises(EvidenceError):
        EvidencePack([], require_all=flag)
    with pytest.raises(EvidenceError):
        EvidencePack([], allow_partial=flag)


def test_a_claim_is_frozen_and_shares_nothing_with_what_it_was_made_of():
    facts = {"where": {"a": [1]}}
    claim = Evidence("db_row", "row", facts)
    facts["where"]["a"].append(2)
    assert claim.expected == {"where": {"a": [1]}}
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        claim.description = "other"


@pytest.mark.parametrize("kind", ["", " ", None, 3, "a\nb", "\x1b[31m"])
def test_a_kind_is_a_name(kind):
    with pytest.raises(EvidenceError):
        Evidence(kind, "claim", {})


@pytest.mark.parametrize("workers", [0, -1, True, 2.0, "2", None])
def test_a_quorum_is_a_number_of_workers(workers):
    with pytest.raises(EvidenceError):
        command_exit(0).quorum(workers)
