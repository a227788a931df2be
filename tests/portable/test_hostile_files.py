"""A file that anybody may have made: refused with an error that says where and why, or harmless; never half a run."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from runs import done, exported, lines_of, sealed

from flowckpt import MemoryCheckpointStore
from flowckpt.errors import (
    FlowckptError,
    ImportRefusedError,
    RunExistsError,
    SourceUnreadableError,
    UnsupportedSchemaError,
)
from flowckpt.maintenance import ImportLimits, import_run
from flowckpt.maintenance.portable import MOST_DEPTH
from flowckpt.stores import SqliteCheckpointStore
from flowckpt.testing.contract import checkpoint, results
from tests.open_files import open_below


@pytest.fixture(scope="module")
def small():
    """A small exported run: two attempts, a failure, one large value."""
    store = MemoryCheckpointStore()
    first = [*results(1), *results("x" * 70_000, first=2)]
    metadata = {"tags": {"a": "b"}, "target": {"file": "/x.py", "name": "etl"}}
    done(store.save("run", checkpoint(1, first[:1], metadata=metadata, inputs={"n": 1})))
    done(store.save("run", checkpoint(2, first, metadata=metadata, inputs={"n": 1})))
    done(store.release("run"))
    done(store.save("run", checkpoint(3, [*first[:1], *results((2,), first=2)], attempt=2, output=3)))
    done(store.release("run"))
    return exported(store)


def taken(tmp_path, content, target=None, **options):
    (tmp_path / "file").write_bytes(content)
    store = target or MemoryCheckpointStore()
    return store, done(import_run(store, tmp_path / "file", **options))


def refusal(tmp_path, content, **options):
    """The error for a file; the store is as it was."""
    store = MemoryCheckpointStore()
    with pytest.raises(ImportRefusedError) as caught:
        taken(tmp_path, content, store, **options)
    assert done(store.list_runs()) == []
    assert str(tmp_path / "file") in str(caught.value)
    return caught.value


def is_like(line):
    """Which bytes of a line are worth changing: of a large value the first and the last."""
    return [*range(min(len(line), 120)), *range(max(120, len(line) - 40), len(line))]


def test_every_byte_that_was_changed_is_noticed(small, tmp_path):
    store, offset = MemoryCheckpointStore(), 0
    for line in small.splitlines(keepends=True):
        for index in is_like(line):
            place = offset + index
            for byte in (small[place] ^ (1 if place % 2 else 0x80),):
                (tmp_path / "file").write_bytes(small[:place] + bytes([byte]) + small[place + 1 :])
                with pytest.raises((ImportRefusedError, UnsupportedSchemaError)):
                    done(import_run(store, tmp_path / "file"))
        offset += len(line)
    assert done(store.list_runs()) == []


def test_every_truncation_is_noticed(small, tmp_path):
    store = MemoryCheckpointStore()
    line_ends = [index + 1 for index, byte in enumerate(small) if byte == 10]
    places = {*range(200), *range(len(small) - 500, len(small)), *line_ends[:-1], *(end - 1 for end in line_ends)}
    for place in sorted(places):
        (tmp_path / "file").write_bytes(small[:place])
        with pytest.raises(ImportRefusedError):
            done(import_run(store, tmp_path / "file"))
    assert done(store.list_runs()) == []


def test_every_truncation_and_change_of_a_compressed_file_is_noticed(small, tmp_path):
    packed = gzip.compress(small, mtime=0)
    assert taken(tmp_path, packed)[1].is_new
    store = MemoryCheckpointStore()
    whole = done(import_run(store, tmp_path / "file"))
    for place in range(1, len(packed), 7):
        for content in (packed[:place], packed[:place] + bytes([packed[place] ^ 0x10]) + packed[place + 1 :]):
            (tmp_path / "file").write_bytes(content)
            try:
                again = done(import_run(store, tmp_path / "file"))
            except ImportRefusedError:
                continue
            assert not again.is_new, "a byte of the packing that says nothing, as the time"
            assert again.checkpoints == whole.checkpoints
    refusal(tmp_path, packed + b"x")
    refusal(tmp_path, packed + packed)


# --- files that prove themselves, and say what cannot be --------------------------------------------------------------


def edited(small, number, **changes):
    """The file with fields of one line changed, and sealed again."""
    lines = lines_of(small)
    document = json.loads(lines[number])
    inner = document.get("checkpoint", document.get("result", document))
    for key, value in changes.items():
        if value is ...:
            inner.pop(key, None)
        else:
            inner[key] = value
    lines[number] = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    return sealed(lines)


def numbers(small, kind):
    return [number for number, line in enumerate(lines_of(small)) if line.startswith(b'{"%b":' % kind.encode())]


def test_a_file_that_was_sealed_anew_unchanged_is_the_same(small):
    assert sealed(lines_of(small)) == small


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a\x1b[31m",
        "a\nb",
        "a\x00",
        "x" * 201,
        5,
        None,
        "\u202ex",
    ],
)
def test_a_hostile_id_of_a_run_is_refused_and_another_id_helps(small, tmp_path, name):
    content = edited(small, 0, workflow_id=name)
    assert "the run id must be" in refusal(tmp_path, content).detail
    assert taken(tmp_path, content, workflow_id="good")[1].workflow_id == "good"


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../b", "..", "--yes", "~root", "-x", "a b/../c", "CON", "é"]
)
def test_an_id_that_only_looks_like_a_path_or_an_option_is_taken_for_no_store_makes_a_path_of_it(small, tmp_path, name):
    store, run = taken(tmp_path, edited(small, 0, workflow_id=name))
    assert run.workflow_id == name
    assert done(store.load_latest(name)) is not None


@pytest.mark.parametrize("name", ["", "a\nb", "a\x1b]0;x\x07", "x" * 5000, 7, None, "\x9b31m"])
@pytest.mark.parametrize("kind", ["checkpoint_id", "workflow_name"])
def test_a_hostile_name_of_a_checkpoint_is_refused(small, tmp_path, kind, name):
    refusal(tmp_path, edited(small, numbers(small, "checkpoint")[0], **{kind: name}))


@pytest.mark.parametrize("name", ["../../x", "a/b", "CON", "$(reboot)", "é", "e\u0301"])
def test_names_that_only_look_wild_are_harmless(small, tmp_path, name):
    store, run = taken(tmp_path, edited(small, numbers(small, "checkpoint")[0], checkpoint_id=name))
    assert done(store.load(run.workflow_id, name)).checkpoint_id == name


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("checkpoint", {"sequence": 0}),
        ("checkpoint", {"sequence": 2**60}),
        ("checkpoint", {"sequence": True}),
        ("checkpoint", {"sequence": 1.0}),
        ("checkpoint", {"attempt": 2}),
        ("checkpoint", {"reason": "because"}),
        ("checkpoint", {"status": "crashed"}),
        ("checkpoint", {"saved_at": "yesterday"}),
        ("checkpoint", {"saved_at": "2026-01-01T12:00:00"}),
        ("checkpoint", {"saved_at": ...}),
        ("checkpoint", {"workflow_name": ...}),
        ("checkpoint", {"inputs": []}),
        ("checkpoint", {"inputs": {"$blob": ["0" * 64, 70_002]}}),
        ("checkpoint", {"snapshot": {"$blob": 5}}),
        ("checkpoint", {"inputs_hash": "x\n"}),
        ("checkpoint", {"metadata": {"tags": {"a": 1}}}),
        ("checkpoint", {"metadata": {"target": ["x"]}}),
        ("checkpoint", {"metadata": {"defaulted": "x"}}),
        ("checkpoint", {"metadata": {"superseded": [5]}}),
        ("checkpoint", {"metadata": {"superseded": [{"path": "x"}]}}),
        ("checkpoint", {"metadata": {"manager": []}}),
        ("checkpoint", {"metadata": {"rolling_back": {"reason": "failed"}}}),
        ("checkpoint", {"metadata": {"rolling_back": {"reason": "x", "error": None}}}),
        ("checkpoint", {"metadata": {"$unknown": 1}}),
        ("checkpoint", {"evidence": {}}),
        ("checkpoint", {"in_flight": [1]}),
        ("checkpoint", {"error": "x"}),
        ("checkpoint", {"step_results": []}),
        ("attempt", {"attempt": 0}),
        ("attempt", {"attempt": 10_001}),
        ("attempt", {"keeps": 1}),
        ("attempt", {"keeps": -1}),
    ],
    ids=str,
)
def test_what_a_checkpoint_cannot_say_is_refused(small, tmp_path, kind, changes):
    error = refusal(tmp_path, edited(small, numbers(small, kind)[0], **changes))
    assert error.line > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"path": 5},
        {"path": "a\nb"},
        {"path": ...},
        {"duration_ms": "1"},
        {"duration_ms": ...},
        {"success": 1},
        {"started_at": 5},
        {"attempt": -1},
        {"marks": "x"},
        {"arguments": []},
        {"evidence": []},
        {"error": {"type": 1, "message": ""}},
        {"output": {"$blob": ["a" * 64, 70_002]}},
        {"output": {"$blob": []}},
    ],
    ids=lambda value: f"{value}"[:40],
)
def test_what_a_result_cannot_say_is_refused_although_its_digests_are_right(tmp_path, changes):
    from hashlib import sha256

    store = MemoryCheckpointStore()
    done(store.save("run", checkpoint(1, results(1))))
    lines = lines_of(exported(store))
    document = json.loads(lines[2])
    for key, value in changes.items():
        document["result"].update({key: value}) if value is not ... else document["result"].pop(key)
    lines[2] = json.dumps(document, separators=(",", ":")).encode() + b"\n"
    head = json.loads(lines[3])
    head["chain"] = sha256(bytes(32) + lines[2][10:-2]).hexdigest()
    lines[3] = json.dumps(head, separators=(",", ":")).encode() + b"\n"
    assert "digest" not in refusal(tmp_path, sealed(lines)).detail


def replaced(small, old, new):
    lines = lines_of(small)
    number = numbers(small, "checkpoint")[0]
    assert old in lines[number]
    lines[number] = lines[number].replace(old, new, 1)
    return sealed(lines)


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (b'"metadata":{"x":NaN}', "NaN"),
        (b'"metadata":{"x":-Infinity}', "Infinity"),
        (b'"metadata":{"x":1e999}', "too large"),
        (b'"metadata":{"x":1,"x":2}', "twice"),
        (b'"sequence":1,"metadata":{}', "twice"),
        (b'"metadata":{"x":"\\ud800"}', "surrogate"),
        (b'"metadata":{"x":"\xff"}', "UTF-8"),
        (b'"metadata":{"x":' + b"9" * 5000 + b"}", "JSON"),
        (b'"metadata":{"x":' + b"[" * 5_000 + b"]" * 5_000 + b"}", "deep"),
        (b'"metadata":{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "deep"),
        (b'"metadata":{"x":' + b'{"a":' * (MOST_DEPTH + 1) + b"1" + b"}" * (MOST_DEPTH + 1) + b"}", "deep"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_json_that_no_store_could_keep_is_refused(small, tmp_path, new, said):
    old = b'"metadata":{"tags":{"a":"b"},"target":{"file":"/x.py","name":"etl"}}'
    assert said in refusal(tmp_path, replaced(small, old, new)).detail


def test_the_deepest_value_that_can_be_recorded_comes_through(tmp_path):
    deepest = ()
    for _ in range(99):
        deepest = (deepest,)
    store = MemoryCheckpointStore()
    done(store.save("run", checkpoint(1, results(deepest), snapshot=deepest)))
    target, _ = taken(tmp_path, exported(store))
    assert done(target.load_latest("run")).step_results[0].output == deepest


def test_lines_in_the_wrong_order_are_refused(small, tmp_path):
    lines = lines_of(small)
    for first in range(len(lines) - 1):
        wrong = [*lines]
        wrong[first], wrong[first + 1] = wrong[first + 1], wrong[first]
        if lines[first + 1].startswith(b'{"blob":') and not lines[first].startswith(b'{"flowckpt"'):
            continue  # a large value may stand earlier than it need
        refusal(tmp_path, sealed(wrong))
    for number in range(len(lines)):
        refusal(tmp_path, sealed([*lines[:number], *lines[number + 1 :]]))
        refusal(tmp_path, sealed([*lines[: number + 1], *lines[number:]]))
    refusal(tmp_path, small + b"\n")
    refusal(tmp_path, small + small)
    refusal(tmp_path, b"")


def test_a_large_value_that_is_not_its_digest_or_belongs_to_nothing_is_refused(small, tmp_path):
    from hashlib import sha256

    lines = lines_of(small)
    number = numbers(small, "blob")[0]
    lines[number] = lines[number].replace(b"xxx", b"xxy", 1)
    assert "digest" in refusal(tmp_path, sealed(lines)).detail
    content = b'"' + b"z" * 70_000 + b'"'
    unused = b'{"blob":"%b","size":%d,"content":%b}\n' % (sha256(content).hexdigest().encode(), len(content), content)
    assert "belongs to nothing" in refusal(tmp_path, sealed([*lines_of(small), unused])).detail


def test_a_newer_major_version_is_refused_by_name(small, tmp_path):
    for version in (2, "1", None, 0):
        with pytest.raises(UnsupportedSchemaError):
            taken(tmp_path, edited(small, 0, schema_version=version))


def test_a_field_that_this_version_does_not_know_is_kept(small, tmp_path):
    store, run = taken(tmp_path, edited(small, numbers(small, "checkpoint")[-1], later={"x": [1]}))
    assert done(store.load_latest(run.workflow_id)).extra == {"later": {"x": [1]}}


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"max_bytes": 1000}, "1000 bytes"),
        ({"max_value_bytes": 60_000}, "60000 bytes"),
        ({"max_records": 5}, "5 lines"),
        ({"max_attempts": 1}, "at most 1"),
    ],
    ids=str,
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "packed"])
def test_what_goes_beyond_a_limit_is_refused(small, tmp_path, limits, said, pack):
    assert said in refusal(tmp_path, pack(small), limits=ImportLimits(**limits)).detail


def test_a_bomb_is_refused_before_it_has_swollen(tmp_path):
    bomb = gzip.compress(b'{"flowckpt":"run"}\n' + b"0" * (200 << 20), mtime=0)
    assert len(bomb) < 1 << 20
    assert "200 times" in refusal(tmp_path, bomb).detail
    assert open_below(tmp_path) == []


@pytest.mark.parametrize("limits", [{"max_bytes": 0}, {"max_ratio": -1}, {"max_records": "5"}], ids=str)
def test_a_limit_that_is_none_is_refused(limits):
    with pytest.raises(ValueError, match="at least 1"):
        ImportLimits(**limits)


def test_what_cannot_be_read_is_no_import(tmp_path):
    for file in (tmp_path / "none", tmp_path):
        with pytest.raises(SourceUnreadableError):
            done(import_run(MemoryCheckpointStore(), file))


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"[]", b"{}", b"null", b'"x"', b"\x00" * 100, b"{" * 50_000, b"PK\x03\x04", b'{"flowckpt":"x"}\n'],
)
def test_what_is_something_else_is_refused(tmp_path, content):
    refusal(tmp_path, content)


# --- the law: refused, or harmless -----------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from(["$blob", "2026-01-01T00:00:00Z", "completed", "@started", "../x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.sampled_from(["$blob", "$tuple", "$dict"]), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = (
    *("sequence", "checkpoint_id", "attempt", "reason", "status", "saved_at", "workflow_name", "inputs_hash", "inputs"),
    *("fingerprint", "metadata", "evidence", "in_flight", "snapshot", "output", "error", "keeps", "later", "results"),
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)
@given(number=st.integers(1, 30), changes=st.dictionaries(st.sampled_from(FIELDS), JSON, min_size=1, max_size=2))
def test_whatever_a_line_says_the_file_is_refused_or_the_run_can_be_read(small, tmp_path_factory, number, changes):
    place = tmp_path_factory.mktemp("law")
    candidates = [n for n, line in enumerate(lines_of(small)) if line[:9] in (b'{"attempt', b'{"checkpo')]
    for store in (MemoryCheckpointStore(), SqliteCheckpointStore(place / "s.db")):
        try:
            _, run = taken(place, edited(small, candidates[number % len(candidates)], **changes), store)
        except FlowckptError as error:
            assert not isinstance(error, RunExistsError)
            assert done(store.list_runs()) == []
        else:
            assert run.is_new
            (info,) = done(store.list_runs())
            assert dict(info.tags) is not None
            assert all(finding.severity == "ok" for finding in done(store.check()))
            latest = done(store.load_latest("run"))
            for look in (lambda: latest.inputs, lambda: latest.snapshot, lambda: latest.output):
                try:
                    look()
                except FlowckptError:
                    pass
            assert exported(store)
        if hasattr(store, "close"):
            store.close()


@settings(
    max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)
@given(
    changes=st.dictionaries(st.sampled_from((*FIELDS, "schema_version", "step_results")), JSON, min_size=1, max_size=3)
)
@example(changes={"attempt": 10**12})
def test_whatever_the_document_of_a_checkpoint_says_it_is_refused_or_the_run_can_be_read(tmp_path_factory, changes):
    from flowckpt.core.codec.checkpoints import export_document

    document = {**export_document(checkpoint(2, results(1, (2,)))), **changes}
    store = MemoryCheckpointStore()
    try:
        _, run = taken(tmp_path_factory.mktemp("law"), json.dumps(document).encode(), store)
    except FlowckptError:
        assert done(store.list_runs()) == []
    else:
        assert exported(store, run.workflow_id)
        assert len(done(store.list_runs())) == 1
