"""Of a line that holds one plain result, a store parses what a resume needs, and the rest at the first look."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowckpt.core.codec.results import PlainResult, arguments_format, decode_result, encode_arguments, encode_result
from flowckpt.core.records import StepResult
from flowckpt.errors import CheckpointCorruptedError
from flowckpt.stores.log.image import RunImage, read_run
from flowckpt.stores.log.segment import START, TRAILER, chain_line, find_removed, parse_segment

NOW = datetime(2026, 11, 23, 4, 36, 27, 150356, tzinfo=UTC)
LIKE_A_RECORD = ',"duration_ms":0.5,"started_at":"2026-11-23T04:36:27.150356Z","function":"a:b","location":"c.py:1","fingerprint":"2:x"'
HEAD = {
    "flowckpt": "segment",
    "schema_version": 1,
    "workflow_id": "run",
    "segment": 1,
    "created_at": "2026-11-23T04:36:26Z",
}
FIRST = (
    '{"step_results":[],"sequence":1,"checkpoint_id":"@started","reason":"started","saved_at":"2026-11-23T04:36:26.522467Z",'
    '"results":0,"workflow_name":"w","inputs_hash":"sha256:v1:00","fingerprint":"","inputs":{},"metadata":{}'
)


def result(output: Any = None, path: str = "fetch", **more: Any) -> StepResult:
    fields = {"function": "a:b", "location": "c.py:1", "fingerprint": "2:x", "arguments": {"number": 1}, **more}
    return StepResult(path.partition("[")[0], output=output, duration_ms=0.25, path=path, started_at=NOW, **fields)


def written(results: list[StepResult]) -> bytes:
    """Return a segment with a checkpoint after each result, as the file store writes them."""
    bodies = [json.dumps(HEAD).encode()[:-1], FIRST.encode()]
    for sequence, each in enumerate(results, 2):
        head = f'],"sequence":{sequence},"saved_at":"2026-11-23T04:36:27Z"'
        bodies.append(b'{"step_results":[' + encode_result(each)[0] + head.encode())
    digest, lines = START, b""
    for body in bodies:
        line, digest = chain_line(body, digest)
        lines += line
    return lines


def read(data: bytes) -> RunImage:
    return read_run("run", [1], lambda number: data, lambda digest, size: b"")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(JSON, st.text(min_size=1, max_size=5), st.dictionaries(st.text(), st.integers() | st.text(), max_size=2))
@example({"a": 1, "duration_ms": 0.5}, "p", {})
@example(json.loads('{"a":1' + LIKE_A_RECORD + "}"), "p", {})
@example([json.loads('{"a":1' + LIKE_A_RECORD + "}"), {"path": "fetch[7]"}], "p", {"a": "}]"})
@example('",' + LIKE_A_RECORD, "p", {"a": LIKE_A_RECORD})
@example((1, "tuple"), "p", {})
@example({"$blob": ["0" * 64, 1 << 20]}, "p", {})
def test_every_result_is_that_of_its_whole_document(output: Any, path: str, arguments: dict[str, Any]) -> None:
    made = [
        result(),
        result(output, "fetch[1]", arguments=arguments),
        result(output, path),
        result(output, "b", attempt=3),
        result(output, "c", step_type="map"),
        result(output, "d", tries=2, version="v", marks=("edited",), extra={"later": [1]}),
    ]
    image = read(written(made))
    found = image.history.results
    assert found == made == [decode_result(json.loads(encode_result(each)[0]))[0] for each in made]
    assert [type(each.output) for each in found] == [type(each.output) for each in made]
    assert image.history.encoded == [encode_result(each)[0] for each in made]
    assert [record.head["checkpoint_id"] for record in image.records] == ["@started", *(each.path for each in made)]
    assert [record.count for record in image.records] == [*range(7)] and find_removed(image.records) == set()


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "ü"]), st.integers(-(2**63), 2**63 - 1) | st.text() | st.booleans() | st.none()
    )
)
def test_the_bytes_of_arguments_are_those_of_their_line(arguments: dict[str, Any]) -> None:
    (found,) = read(written([result(arguments=arguments)])).history.results
    if type(found) is PlainResult:
        assert found.arguments_text == encode_arguments(arguments) and found.arguments == arguments
    if all(type(each) is int for each in arguments.values()):
        assert type(found) is PlainResult
        assert found.arguments_text == arguments_format([*arguments]) % tuple(arguments.values())


def plain(output: Any) -> PlainResult:
    (found,) = read(written([result(output)])).history.results
    assert type(found) is PlainResult
    return found


def test_a_plain_result_is_read_at_the_first_look() -> None:
    found = plain({"i": 1})
    assert found.path == "fetch" and found.fingerprint == "2:x" and found.arguments == {"number": 1}
    assert not found.marks and found.evidence is None and found.success and found.attempt == 1
    assert type(found) is PlainResult
    assert found.started_at == NOW and found.duration_ms == 0.25 and found.name == "fetch"
    assert type(found) is StepResult and found.output == {"i": 1}


@pytest.mark.parametrize("look", [repr, pickle.dumps, copy.copy, lambda found: found == result({"i": 1})])
def test_each_look_at_the_whole_result_makes_it_a_step_result(look: Any) -> None:
    found = plain({"i": 1})
    assert look(found)
    assert type(found) is StepResult and found == result({"i": 1}) and result({"i": 1}) == plain({"i": 1})


def test_a_copy_is_a_step_result() -> None:
    for copied in (pickle.loads(pickle.dumps(plain([1]))), copy.copy(plain([1])), attrs.evolve(plain([1]), attempt=1)):
        assert copied == result([1]) and copied.output == [1]


def test_a_taken_output_is_read_again() -> None:
    found = plain({"i": [1]})
    taken = found.take()
    taken["i"].append(2)
    assert found.take() == {"i": [1]} and found.output == {"i": [1]}
    assert plain(None).take() is None


def test_a_plain_line_out_of_order_is_damage() -> None:
    data = written([result(1), result(2, "fetch[1]")])
    lines = data.split(b"\n")
    bodies = [line[:-77] for line in [*lines[:2], lines[3].replace(b'"sequence":3', b'"sequence":4')]]
    digest, damaged = START, b""
    for body in bodies:
        line, digest = chain_line(body, digest)
        damaged += line
    with pytest.raises(CheckpointCorruptedError, match="checkpoint 4 is out of order"):
        read(damaged)


def test_an_edited_plain_line_is_refused_before_it_is_parsed() -> None:
    data = written([result({"i": 1}), result({"i": 2}, "fetch[1]")])
    assert len(parse_segment(data, number=1).records) == 3
    with pytest.raises(CheckpointCorruptedError):
        read(data.replace(b'{"i":1}', b'{"i":7}'))


def sealed(bodies: list[bytes]) -> bytes:
    digest, lines = START, b""
    for body in bodies:
        line, digest = chain_line(body, digest)
        lines += line
    return lines


FORGED = {
    "an origin that is not JSON": (b'"location":"c.py:1"', b'"location":"c\\py:1"'),
    "a raw control character": (b'"location":"c.py:1"', b'"location":"c\x01py"'),
    "bytes that are not text": (b'"location":"c.py:1"', b'"location":"c\xffpy"'),
    "arguments that are not JSON": (b'{"number":1}', b'{"number":01}'),
    "arguments without a value": (b'{"number":1}', b'{"number"}'),
    "arguments that are not text": (b'{"number":1}', b'{"number":"\xff"}'),
    "an output that is not JSON": (b'{"i":1}', b'{"i":1]'),
    "an output that ends its record": (b'{"i":1}', b'1},{"path":"more","output":2'),
}


@pytest.mark.parametrize("old, new", FORGED.values(), ids=FORGED)
def test_a_line_of_another_form_is_damage_though_its_digest_fits(old: bytes, new: bytes) -> None:
    data = written([result(0, "fetch"), result({"i": 1}, "fetch[1]"), result(2, "fetch[2]")])
    bodies = [line[:-TRAILER] for line in data.split(b"\n")[:-1]]
    assert bodies[3].count(old) == 1
    bodies[3] = bodies[3].replace(old, new)
    with pytest.raises(CheckpointCorruptedError):
        read(sealed(bodies))


def test_a_result_of_a_plain_form_with_more_fields_is_read_whole() -> None:
    data = written([result({"i": 1}, step_type="map")])
    bodies = [line[:-TRAILER] for line in data.split(b"\n")[:-1]]
    bodies[2] = bodies[2].replace(b'"step_type":"map",', b'"success":true,"step_type":"map",')
    (found,) = read(sealed(bodies)).history.results
    assert type(found) is StepResult and found.step_type == "map" and found.output == {"i": 1}


def test_what_may_be_more_than_a_plain_result_is_known() -> None:
    made = [result(1), result(2, "b", tries=2), result(3, "c"), result((4,), "d")]
    history = read(written(made)).history
    assert [each.path for each in history.notable()] == ["b", "d"]
    assert [each.path for each in history.view(2).notable()] == ["b"] and history.view(1).notable() == []
    fork = history.forked(3)
    fork.append(made[0], b"{}")
    assert [each.path for each in fork.notable()] == ["b", "fetch"]
