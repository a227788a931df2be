"""Results and checkpoints as documents: what a store keeps, and what people export."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import attrs
import pytest
from closed_set import any_text, same, values
from hypothesis import given, settings
from hypothesis import strategies as st

from flowckpt import CheckpointData, FileCheckpointStore, StepResult
from flowckpt.core.codec import dumps
from flowckpt.core.codec.blob import BLOB_SIZE, Blob, unpack
from flowckpt.core.codec.checkpoints import (
    check_schema,
    decode_head,
    encode_head,
    export_document,
    export_text,
    result_document,
)
from flowckpt.core.codec.results import append_result, as_view, decode_result, encode_result, encode_time
from flowckpt.core.dsl import path_of
from flowckpt.core.records import History, Reason, Status, StepError
from flowckpt.core.records.checkpoint import STATUS_OF_REASON
from flowckpt.errors import DecodingError, EncodingError, UnsupportedSchemaError
from tests.stable_ids import stable

GOLDEN = Path(__file__).parent / "golden"

text = st.text(min_size=1, max_size=8)
moments = st.datetimes().map(lambda moment: moment.replace(tzinfo=UTC, fold=0))
errors = st.builds(
    StepError, text, st.text(), st.lists(text, max_size=2).map(tuple), st.text(), text, st.integers(1, 5)
)
plain_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
extras = st.dictionaries(st.text(max_size=4).map("x-{}".format), plain_json, max_size=2)


@st.composite
def results(draw):
    name = draw(text)
    return StepResult(
        name,
        draw(st.sampled_from(["python", "command"])),
        draw(st.booleans()),
        draw(values),
        draw(st.integers(0, 10**9) | st.floats(0, 1e9)),
        draw(st.none() | errors),
        draw(st.sampled_from([name, path_of(name), path_of(name, 3), f"train/{path_of(name)}"])),
        draw(st.none() | moments),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from(["", "m:f", "é:<locals>.f"])),
        draw(st.none() | text),
        draw(st.sampled_from(["", "p.py:3"])),
        draw(st.sampled_from(["", "1:Zm9vYmFyYmF6cXV4MTIzNA"])),
        draw(st.dictionaries(st.text(max_size=3), st.integers(-(2**40), 2**40) | st.none() | text, max_size=2)),
        draw(st.none() | st.dictionaries(st.text(min_size=1, max_size=4), plain_json, max_size=2)),
        draw(st.sampled_from([(), ("at_most_once",), ("at_most_once", "on_rerun")])),
        draw(extras),
        draw(st.just("") | text),
    )


@st.composite
def checkpoints(draw):
    reason = draw(st.sampled_from(Reason))
    return CheckpointData(
        checkpoint_id=draw(text),
        workflow_name=draw(text),
        inputs_hash="sha256:v1:" + "0" * 64,
        step_results=draw(st.lists(results(), max_size=2)),
        saved_at=draw(moments),
        sequence=draw(st.integers(1, 9)),
        attempt=draw(st.integers(1, 9)),
        reason=reason,
        status=draw(st.sampled_from([STATUS_OF_REASON[reason], Status.FAILED])),
        inputs=draw(st.dictionaries(text, values, max_size=2)),
        fingerprint=draw(st.text(max_size=4)),
        evidence=tuple(draw(st.lists(values, max_size=2))),
        in_flight=tuple(draw(st.lists(text, max_size=2))),
        snapshot=draw(values),
        metadata=draw(st.dictionaries(any_text, values, max_size=2)),
        output=draw(values),
        error=draw(st.none() | errors),
        extra=draw(extras),
    )


def fields_of(record):
    """Every field as a caller sees it, so that they can be compared in type too."""
    return {a.name.lstrip("_"): getattr(record, a.name.lstrip("_")) for a in attrs.fields(type(record))}


def assert_same(found, expected):
    left, right = fields_of(found), fields_of(expected)
    for name, value in right.items():
        if name == "step_results":
            assert len(left[name]) == len(value)
            for a, b in zip(left[name], value, strict=True):
                assert_same(a, b)
        else:
            assert same(left[name], value) or (left[name] == value and name == "error"), name


@given(results())
@settings(max_examples=75, deadline=None)
def test_a_result_comes_back_from_its_bytes_the_same(result):
    encoded, blobs = encode_result(result)
    found, _ = decode_result(json.loads(encoded))
    assert_same(found, result)
    assert blobs == {}
    assert encode_result(found)[0] == encoded  # a store's bytes do not change by being read and written
    assert b"\n" not in encoded


@given(checkpoints())
@settings(max_examples=40, deadline=None)
def test_a_checkpoint_comes_back_from_its_head_and_its_results_the_same(data):
    head, blobs = encode_head(data)
    results = [decode_result(json.loads(encode_result(result)[0]))[0] for result in data.step_results]
    found = decode_head(json.loads(dumps(head).encode()), results)
    assert_same(found, data)
    assert blobs == {}


@given(checkpoints(), checkpoints())
@settings(max_examples=25, deadline=None)
def test_what_a_run_says_once_is_left_out_and_carried_over_from_the_checkpoint_before(first, second):
    same_run = attrs.evolve(
        second,
        workflow_name=first.workflow_name,
        inputs_hash=first.inputs_hash,
        inputs=first.held_inputs,
        fingerprint=first.fingerprint,
        metadata=first.metadata,
    )
    earlier, later = encode_head(first)[0], encode_head(same_run, first)[0]
    assert not {"workflow_name", "inputs_hash", "inputs", "fingerprint", "metadata"} & later.keys()
    carried = {name: earlier[name] for name in ("workflow_name", "inputs_hash", "inputs", "fingerprint", "metadata")}
    assert_same(decode_head({**carried, **later}, same_run.step_results), same_run)


@given(st.lists(results(), max_size=4))
@settings(max_examples=25, deadline=None)
def test_a_view_of_plain_results_has_their_canonical_bytes_and_a_chain_digest_made_of_them_alone(given_results):
    view = as_view(given_results)
    assert view.history.encoded == [encode_result(result)[0] for result in given_results]
    chain = bytes(32)
    for result in given_results:
        chain = hashlib.sha256(chain + encode_result(result)[0]).digest()
    assert view.chain == chain
    assert as_view(view) is view


def history_of(*outputs):
    history = History()
    for output in outputs:
        append_result(history, StepResult("a", output=output))
    return history


def test_histories_are_compared_by_their_bytes_and_by_where_they_come_from():
    history = history_of(1, 2, 3)
    fork = history.forked(2)
    append_result(fork, StepResult("a", output="other"))
    again = history_of(1, 2, 3).view()
    assert history.view().shared_length(again) == 3
    assert history.view(2).shared_length(again) == 2
    assert history.view().shared_length(history_of(1, 5, 3).view()) == 1
    assert history.view().shared_length(fork.view()) == fork.view().shared_length(history.view()) == 2
    assert fork.view().continues(history.view(2))
    assert not fork.view().continues(history.view())
    assert not history.view(2).continues(history.view())
    assert history.view().continues(again)
    append_result(fork.forked(2), StepResult("a", output=3))
    assert len(fork.results) == 3
    same_again = history.forked(2)
    append_result(same_again, StepResult("a", output=3))
    assert same_again.view().continues(history.view())  # the same bytes, run twice


def test_results_read_from_a_store_are_split_into_their_bytes_when_these_are_asked_for():
    parts = history_of("a", "b", "c")
    asked = []

    def split():
        asked.append(1)
        return parts.encoded

    history = history_of("z")
    history.extend(parts.results, {}, split)
    append_result(history, StepResult("a", output="d"))
    fork = history.forked(3)
    append_result(fork, StepResult("a", output="e"))
    assert fork.view().continues(history.view(3))
    assert history.encoded_between(4, 5) == [history_of("d").encoded[0]]
    assert fork.encoded_between(3, 4) == [history_of("e").encoded[0]]
    assert history.encoded_between(2, 2) == []
    assert not asked
    assert history.forked(3).encoded_between(1, 3) == history_of("a", "b").encoded
    assert fork.encoded == history_of("z", "a", "b", "e").encoded
    assert history.encoded == history_of("z", "a", "b", "c", "d").encoded
    assert [result.output for result in fork.view()] == ["z", "a", "b", "e"]


def test_a_time_is_written_the_same_whatever_was_written_before():
    moments_around = [
        datetime(2026, 11, 20, 15, 30, 59, 999_999, UTC),
        datetime(2026, 11, 20, 15, 31, 0, 0, UTC),
        datetime(2026, 11, 20, 15, 31, 0, 1, UTC),
        datetime(2026, 11, 21, 15, 31, 0, 1, UTC),
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 5, UTC),
        datetime(2026, 11, 20, 15, 30, 59, 999_999, timezone(timedelta(hours=2))),
        datetime(2026, 11, 20, 15, 30, 59, 999_999, timezone(timedelta(0))),
    ]
    for moment in [*moments_around, *moments_around[::-1]]:
        assert encode_time(moment) == moment.isoformat().replace("+00:00", "Z")


def test_fields_that_this_version_does_not_know_are_kept():
    document = {"path": "a", "step_type": "shell", "duration_ms": 1, "cost": {"usd": 1.5}, "node": None}
    result, _ = decode_result(document)
    assert result.extra == {"cost": {"usd": 1.5}, "node": None}
    assert json.loads(encode_result(result)[0]) == document
    head, _ = encode_head(checkpoint(extra={"owner_team": ["a"]}))
    assert decode_head({**head, "later": 1}, []).extra == {"owner_team": ["a"], "later": 1}
    assert export_document(checkpoint(extra={"owner_team": ["a"]}))["owner_team"] == ["a"]


@pytest.mark.parametrize("depth", [1, 1_000, 100_000])
def test_a_path_of_however_many_members_shows_its_name(depth):
    result = StepResult("pages", path="pages" + "/[0]" * depth, duration_ms=1.0)
    encoded, _ = encode_result(result)
    assert b'"name"' not in encoded
    assert decode_result(json.loads(encoded))[0].name == "pages"


@given(st.text("ab/[]%", max_size=6), st.text("ab/[]%", max_size=6))
def test_a_name_comes_back_whatever_its_path_shows(name, path):
    encoded, _ = encode_result(StepResult(name, path=path))
    back = decode_result(json.loads(encoded))[0]
    assert (back.name, back.path) == (name, path)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"a": 1}, {"a": -(10**18), "b": "text"}, {'é"': "\u2028\n"}, {"a": 1.5, "b": None}, {"a": True}],
)
def test_arguments_are_written_as_json_writes_them(arguments):
    encoded, _ = encode_result(StepResult("a", arguments=arguments))
    assert json.loads(encoded).get("arguments", {}) == arguments
    assert decode_result(json.loads(encoded))[0].arguments == arguments


@pytest.mark.parametrize(
    "changes",
    [
        {"duration_ms": float("nan")},
        {"duration_ms": float("inf")},
        {"duration_ms": "5"},
        {"duration_ms": timedelta(1)},
        {"duration_ms": True},
        {"extra": {"x": object()}},
        {"extra": {"x": float("nan")}},
        {"output": object()},
        {"figures": {"loss": float("nan")}},
        {"figures": {"loss": "low"}},
        {"source": {"workflow_id": "other"}},
        {"published": {"done": 5}},
        {"published": {"done": {"value": 5, "at": "soon"}}},
    ],
    ids=stable,
)
def test_a_result_that_json_cannot_hold_is_refused_before_it_is_written(changes):
    with pytest.raises(EncodingError):
        encode_result(StepResult("a", **changes))


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"path": "a"},
        {"path": 5, "step_type": "python", "duration_ms": 1},
        {"path": "a", "step_type": "python", "duration_ms": 1, "started_at": "yesterday"},
        {"path": "a", "step_type": "python", "duration_ms": 1, "error": {"type": "X"}},
        {"path": "a", "step_type": "python", "duration_ms": 1, "output": {"$blob": ["../../etc", 70_000]}},
        {"path": "a", "step_type": "python", "duration_ms": 1, "output": {"$blob": ["0" * 64, 3]}},
        [],
        None,
        "a",
    ],
    ids=stable,
)
def test_a_malformed_result_is_a_decoding_error(document):
    with pytest.raises(DecodingError):
        decode_result(document)


@pytest.mark.parametrize(
    "changes",
    [{"reason": "new"}, {"saved_at": 5}, {"inputs": {"$blob": 1}}, {"evidence": 5}, {"metadata": {"$int": 1}}],
)
def test_a_malformed_head_is_a_decoding_error(changes):
    head, _ = encode_head(checkpoint())
    with pytest.raises(DecodingError):
        decode_head({**head, **changes}, [])
    for name in ("checkpoint_id", "saved_at", "sequence", "reason", "inputs"):
        with pytest.raises(DecodingError):
            decode_head({key: value for key, value in head.items() if key != name}, [])


@pytest.mark.parametrize(
    ("version", "remedy"),
    [
        (2, "Upgrade"),
        (0, "not a version"),
        (-1, "not a version"),
        ("2", "Upgrade"),
        (1.0, "not a version"),
        (True, "not a version"),
        (None, "not a version"),
    ],
)
def test_a_newer_or_senseless_schema_version_is_refused(version, remedy):
    check_schema(1)
    with pytest.raises(UnsupportedSchemaError, match=remedy):
        check_schema(version)


def test_times_are_written_in_utc_with_a_z():
    moment = datetime(2026, 11, 20, 15, 30, tzinfo=UTC)
    assert encode_time(moment) == "2026-11-20T15:30:00Z"
    assert encode_time(moment.replace(microsecond=5)) == "2026-11-20T15:30:00.000005Z"
    elsewhere = moment.astimezone(timezone(timedelta(hours=2)))
    assert datetime.fromisoformat(encode_time(elsewhere)) == moment


# --- large values ----------------------------------------------------------------------------------------------------


def of_size(size, letter="a"):
    """A text whose JSON, with its quotes, has so many bytes."""
    width = len(letter.encode())
    filled = letter * ((size - 2) // width)
    return filled + "x" * (size - 2 - len(filled.encode()))


@pytest.mark.parametrize("letter", ["a", "é", "語", "😀"])
def test_a_value_becomes_a_blob_at_64_kib_of_json_in_utf_8_and_not_a_byte_below(letter):
    assert BLOB_SIZE == 65_536
    below, at = of_size(BLOB_SIZE - 1, letter), of_size(BLOB_SIZE, letter)
    assert len(dumps(at).encode()) == BLOB_SIZE
    encoded, blobs = encode_result(StepResult("a", output=below))
    assert blobs == {}
    assert len(encoded) > BLOB_SIZE - 1
    encoded, blobs = encode_result(StepResult("a", output=at))
    (blob,) = blobs.values()
    assert json.loads(encoded)["output"] == {"$blob": [blob.digest, BLOB_SIZE]}
    assert blob.content() == dumps(at).encode()
    assert blob.digest == hashlib.sha256(blob.content()).hexdigest()
    assert blob.value() == at


def test_equal_content_has_one_digest_and_other_content_another():
    one, again, other = (
        next(iter(encode_result(StepResult(name, output=output))[1].values()))
        for name, output in [("a", ["x" * 70_000]), ("b", ["x" * 70_000]), ("c", ("x" * 70_000,))]
    )
    assert one.digest == again.digest != other.digest


def test_a_blob_is_read_from_its_store_once_the_store_has_it_and_a_reference_of_a_user_is_no_blob():
    held = {}
    history = History()
    append_result(history, StepResult("a", output={"big": "x" * 70_000}))
    (blob,) = history.blobs[0].values()
    held[blob.digest] = blob.content()
    blob.release_content(lambda digest, size: held[digest][:size])
    assert history.results[0].output == {"big": "x" * 70_000}
    found, blobs = decode_result(json.loads(history.encoded[0]), lambda digest, size: held[digest])
    assert found.output == {"big": "x" * 70_000}
    assert encode_result(found)[0] == history.encoded[0]
    assert list(blobs) == [blob.digest]
    with pytest.raises(DecodingError, match="not available"):
        Blob(blob.digest, blob.size).value()
    disguised = {"$blob": [blob.digest, 70_000]}
    encoded, blobs = encode_result(StepResult("a", output=disguised))
    assert blobs == {}
    assert decode_result(json.loads(encoded))[0].output == disguised
    assert unpack(json.loads(encoded)["output"], None).value() == disguised


def test_large_inputs_snapshots_and_outputs_of_a_checkpoint_are_blobs_too():
    big = "x" * 70_000
    data = checkpoint(inputs={"a": big}, snapshot=[big], output=(big,))
    head, blobs = encode_head(data)
    assert len(blobs) == 3
    assert len(dumps(head)) < 2_000
    found = decode_head(json.loads(dumps(head)), [], lambda digest, size: blobs[digest].content())
    assert (found.inputs, found.snapshot, found.output) == ({"a": big}, [big], (big,))


# --- for people ------------------------------------------------------------------------------------------------------


def checkpoint(**changes):
    return CheckpointData(
        **{
            "checkpoint_id": "fetch",
            "workflow_name": "etl",
            "inputs_hash": "sha256:v1:" + "ab" * 32,
            "step_results": [],
            "saved_at": datetime(2026, 11, 20, 15, 30, tzinfo=UTC),
            "sequence": 2,
            "attempt": 1,
            "reason": "step",
            "inputs": {"source": Path("orders.csv"), "limit": 1000},
            **changes,
        }
    )


EXAMPLE = {  # of the design: a document of ours has these keys, spelled so, with values of these forms
    "schema_version": 1,
    "checkpoint_id": "fetch",
    "workflow_name": "etl",
    "inputs_hash": "sha256:v1:" + "ab" * 32,
    "sequence": 2,
    "attempt": 1,
    "reason": "step",
    "step_results": [
        {
            "name": "fetch",
            "step_type": "python",
            "success": True,
            "output": {"rows": 1000},
            "duration_ms": 5234,
            "error": None,
        }
    ],
    "saved_at": "2026-11-20T15:30:00Z",
}
ADDED = {
    "status",
    "inputs",
    "fingerprint",
    "metadata",
    "evidence",
    "in_flight",
    "snapshot",
    "output",
    "error",
}
ADDED_TO_RESULTS = {"path", "started_at", "attempt", "evidence"}


def test_an_export_has_the_documented_keys_and_values():
    data = checkpoint(step_results=[StepResult("fetch", output={"rows": 1000}, duration_ms=5234)])
    document = json.loads(export_text(data))
    (result,) = document["step_results"]
    assert document.keys() == EXAMPLE.keys() | ADDED
    assert result.keys() == EXAMPLE["step_results"][0].keys() | ADDED_TO_RESULTS
    assert {name: result[name] for name in EXAMPLE["step_results"][0]} == EXAMPLE["step_results"][0]
    found = {name: document[name] for name in EXAMPLE if name != "step_results"}
    assert found == {name: value for name, value in EXAMPLE.items() if name != "step_results"}
    assert result_document(data.step_results[0]) == result
    assert export_text(data).endswith("}\n")


def test_an_export_holds_large_values_themselves():
    big = "é" * 70_000
    history = History()
    append_result(history, StepResult("a", output=[big]))
    data = checkpoint(step_results=history.view(), inputs={"x": big}, snapshot={"s": big}, output=big)
    head, blobs = encode_head(data)
    found = decode_head(json.loads(dumps(head)), data.step_results, lambda digest, size: blobs[digest].content())
    for each in (data, found):
        document = json.loads(export_text(each))
        assert document["step_results"][0]["output"] == [big]
        assert (document["inputs"], document["snapshot"], document["output"]) == ({"x": big}, {"s": big}, big)
        assert "$blob" not in export_text(each)


@given(checkpoints())
@settings(max_examples=20, deadline=None)
def test_an_export_is_strict_json_that_says_all_that_the_checkpoint_holds(data):
    document = json.loads(export_text(data), parse_constant=lambda name: pytest.fail(name))
    results = [decode_result(each)[0] for each in document["step_results"]]
    found = decode_head({name: value for name, value in document.items() if name != "schema_version"}, results)
    found = attrs.evolve(found, extra={k: v for k, v in found.extra.items() if k != "step_results"})
    assert_same(found, data)


# --- golden files: see golden/README.md ------------------------------------------------------------------------------


class Clock:
    """Stands still, but for a second a look."""

    def __init__(self):
        self.seconds = 0

    def now(self):
        self.seconds += 1
        return datetime(2026, 11, 20, 15, 30, tzinfo=UTC) + timedelta(seconds=self.seconds)


def golden_checkpoint(clock, **changes):
    fetched = StepResult(
        "fetch",
        output={"rows": [1, 2.5, None, True], "pair": (1, "zwei"), 3: b"\x00\xff", "nan": float("nan")},
        duration_ms=5234,
        started_at=clock.now(),
        function="pipeline:fetch",
        location="pipeline.py:12",
        fingerprint="1:Zm9vYmFyYmF6cXV4MTIzNA",
        arguments={"limit": 1000, "source": "cXV4MTIzNGZvb2JhcmJheg", "connection": "?"},
        evidence={"pack": {"evidence": []}, "report": {"outcome": "no_evidence"}, "exit_code": 0},
    )
    failed = StepResult(
        "a/b",
        success=False,
        duration_ms=0.25,
        error=StepError("ValueError", "no row «x»", ("ValueError",), "Traceback …", "a%2Fb[1]", 2),
        path=path_of("a/b", 1),
        started_at=clock.now(),
        attempt=2,
        tries=2,
        version="2",
    )
    return checkpoint(
        **{
            "step_results": [fetched, failed],
            "saved_at": clock.now(),
            "attempt": 2,
            "fingerprint": "ast:v1:00",
            "evidence": ({"type": "file_sha256", "path": Path("report.html")},),
            "in_flight": ("load",),
            "snapshot": {"seen": {1, 2, 3}},
            "metadata": {"tags": {"team": "data"}, "target": {"file": "/pipeline.py", "name": "etl"}},
            "extra": {"from_a_newer_version": [1]},
            **changes,
        }
    )


def matches_golden(name, found):
    file = GOLDEN / name
    if os.environ.get("FLOWCKPT_WRITE_MISSING_GOLDEN") and not file.exists():
        file.write_bytes(found)
    return found.decode() == file.read_text("utf-8")


def test_the_export_of_a_fixed_checkpoint_is_the_golden_one():
    assert matches_golden("checkpoint.json", export_text(golden_checkpoint(Clock())).encode())


def test_the_golden_export_can_be_read():
    document = json.loads((GOLDEN / "checkpoint.json").read_text("utf-8"))
    check_schema(document.pop("schema_version"))
    results = [decode_result(each)[0] for each in document.pop("step_results")]
    assert_same(decode_head(document, results), golden_checkpoint(Clock()))


async def test_the_golden_segments_can_be_read(tmp_path):
    directory = tmp_path / "store" / "runs" / "golden"
    directory.mkdir(parents=True)
    for file in GOLDEN.glob("segment-*.json"):
        (directory / f"{file.name.removeprefix('segment-')}l").write_bytes(file.read_bytes())
    store = FileCheckpointStore(tmp_path / "store")
    latest = await store.load_latest("golden")
    assert (latest.sequence, latest.attempt, latest.reason) == (4, 2, Reason.MANUAL)
    assert [result.path for result in latest.step_results] == ["fetch", "a%2Fb[1]"]
    assert latest.inputs == {"source": Path("orders.csv"), "limit": 1000}
    assert [ref.sequence for ref in await store.list_checkpoints("golden")] == [4, 3, 2, 1]
