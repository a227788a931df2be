"""Claims and packs as JSON, and back: nothing is lost, and nothing that another version wrote makes this one fail."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowckpt.errors import DecodingError
from flowckpt.evidence import (
    Capture,
    Evidence,
    EvidencePack,
    EvidenceType,
    EvidenceVerifier,
    State,
    db_row,
    file_sha256,
)

text = st.text(st.characters(exclude_categories=()), max_size=8)
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), text, st.binary(max_size=8),
    st.datetimes(timezones=st.just(UTC)), st.decimals(allow_nan=False), st.uuids(), st.builds(Path, st.just("a/b")),
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(text, inner, max_size=3)
    ),
    max_leaves=6,
)
facts = st.dictionaries(text, values, max_size=4)
kinds = st.one_of(
    st.sampled_from(list(EvidenceType)),
    st.text("abc_.:xyz", min_size=1, max_size=8),
)
plain = st.dictionaries(
    st.text("xyz", min_size=2, max_size=4),
    st.recursive(
        st.none() | st.integers(-9, 9) | st.just("t"), lambda inner: st.lists(inner, max_size=2), max_leaves=3
    ),
    max_size=2,
)
captures = st.none() | st.builds(
    Capture,
    st.datetimes(timezones=st.just(UTC)),
    st.none() | st.lists(st.integers(0, 2**63), min_size=5, max_size=5).map(tuple),
    facts,
)
claims = st.builds(
    Evidence, kinds, text, facts, facts, state=st.sampled_from([State.STATED, State.UNCAPTURED, State.CAPTURED]),
    is_transient=st.booleans(), workers=st.integers(1, 5), captured=captures, extra=plain,
)  # fmt: skip


@settings(max_examples=60)
@given(claims)
def test_a_claim_comes_back_equal(claim):
    document = json.loads(json.dumps(claim.to_document()))
    back = Evidence.from_document(document)
    assert back == claim
    assert types_in(back.expected) == types_in(claim.expected)
    assert type(back.evidence_type) is type(claim.evidence_type)
    assert json.loads(json.dumps(back.to_document())) == document


def types_in(value):
    if isinstance(value, dict):
        return [(types_in(key), types_in(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [types_in(item) for item in value]
    return type(value)


@settings(max_examples=40)
@given(st.lists(claims, max_size=3), st.booleans(), st.booleans(), st.integers(0, 3), plain)
def test_a_pack_comes_back_equal(evidence, require_all, allow_partial, minimum, extra):
    pack = EvidencePack(evidence, require_all, allow_partial, min(minimum, len(evidence)), extra=extra)
    assert EvidencePack.from_document(json.loads(json.dumps(pack.to_document()))) == pack
    assert pickle.loads(pickle.dumps(pack)) == pack


NEWER = {
    "a kind": {"evidence_type": "quantum_state", "description": "d", "expected": {"spin": 1}},
    "a state": {"evidence_type": "file_sha256", "description": "d", "expected": {"path": "f"}, "state": "attested"},
    "a tag": {"evidence_type": "file_sha256", "description": "d", "expected": {"path": {"$from_the_future": 1}}},
    "a registered type": {"evidence_type": "x", "description": "d", "expected": {"v": {"$as": ["unheard.Of", 1]}}},
    "a quorum": {"evidence_type": "x", "description": "d", "expected": {}, "quorum": {"of": 3}},
    "a capture": {"evidence_type": "x", "description": "d", "expected": {}, "captured": {"when": "now"}},
    "a time without zone": {"evidence_type": "x", "description": "d", "expected": {}, "captured": {"at": "2026-01-01"}},
    "facts that are not mapping": {"evidence_type": "x", "description": "d", "expected": [1]},
    "no facts": {"evidence_type": "x", "description": "d"},
    "a description that is none": {"evidence_type": "x", "description": 3, "expected": {}},
    "a transience that is none": {"evidence_type": "x", "description": "d", "expected": {}, "transient": "no"},
    "a blank kind": {"evidence_type": " ", "description": "d", "expected": {}},
    "fields": {"evidence_type": "x", "description": "d", "expected": {}, "weight": 3, "because": {"$odd": [1]}},
}


@pytest.mark.parametrize("what", NEWER)
async def test_what_a_newer_program_wrote_is_kept_and_never_verified(base, what):
    document = NEWER[what]
    claim = Evidence.from_document(copy.deepcopy(document))
    assert claim.to_document() == document
    assert EvidencePack.from_document({"evidence": [document]}).to_document()["evidence"] == [document]
    verdict = await EvidenceVerifier(base).verify_evidence(claim)
    assert (verdict.verified, verdict.status) == (False, "cannot_check")
    assert "cannot be checked" in verdict.error
    repr(claim)


@pytest.mark.parametrize("document", [None, 3, "x", [], {}, {"evidence_type": 3}, {"expected": {}}])
def test_what_is_no_claim_is_an_error_of_ours(document):
    with pytest.raises(DecodingError):
        Evidence.from_document(document)


@pytest.mark.parametrize(
    "document",
    [None, [], {}, {"evidence": {}}, {"evidence": [3]}, {"evidence": [], "require_all": "yes"},
     {"evidence": [], "min_verified": 1}, {"evidence": [], "min_verified": "1"}, {"evidence": [], "allow_partial": 1}],
)  # fmt: skip
def test_a_policy_that_cannot_be_read_is_never_guessed(document):
    with pytest.raises(DecodingError):
        EvidencePack.from_document(document)


def test_a_document_shares_nothing_with_its_claim():
    claim = db_row("a.db", "t", {"a": 1})
    document = claim.to_document()
    document["expected"]["where"]["a"] = 2
    assert claim.expected["where"] == {"a": 1}
    back = Evidence.from_document(document)
    document["expected"]["where"]["a"] = 3
    assert back.expected["where"] == {"a": 2}


def test_the_form_of_a_record_is_this_one():
    claim = Evidence(
        EvidenceType.FILE_SHA256, "the content of rows.csv", {"path": "rows.csv", "sha256": "ab" * 32},
        state=State.CAPTURED, captured=Capture(datetime(2026, 11, 20, 15, 30, tzinfo=UTC), (1, 2, 3, 4, 5), {"size": 3}),
    )  # fmt: skip
    assert claim.to_document() == {
        "evidence_type": "file_sha256",
        "description": "the content of rows.csv",
        "expected": {"path": "rows.csv", "sha256": "ab" * 32},
        "state": "captured",
        "captured": {"at": "2026-11-20T15:30:00+00:00", "signature": [1, 2, 3, 4, 5], "facts": {"size": 3}},
    }
    assert file_sha256("f").transient().quorum(3).to_document() == {
        "evidence_type": "file_sha256",
        "description": "the content of f",
        "expected": {"path": "f"},
        "state": "uncaptured",
        "transient": True,
        "quorum": 3,
    }
