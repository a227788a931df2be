"""A changed byte or a missing end anywhere in a store is found by name, or changes nothing that is shown."""

from __future__ import annotations

import os
import shutil

import pytest

from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    DecodingError,
    FlowckptError,
    ForeignRecordError,
    UnsupportedSchemaError,
)
from flowckpt.stores import FileCheckpointStore
from flowckpt.testing.contract import checkpoint, results
from tests.sealing.sealed_runs import put

RUN = "run-1"
NAMED = (CheckpointCorruptedError, ForeignRecordError, UnsupportedSchemaError)


def shown(store):
    """All that a reader is shown: the checkpoints, the whole newest one, and every value in it."""
    latest = store.runs.load_latest(RUN)
    references = [(ref.sequence, ref.checkpoint_id, ref.attempt, ref.steps) for ref in store.runs.references(RUN)]
    values = [] if latest is None else [result.output for result in latest.step_results]
    return references, None if latest is None else (latest.inputs, latest.snapshot, latest.metadata), values


def make(path):
    """Two attempts, five records, text that is not ASCII, a large value; return what is shown after each record."""
    steps = results("Grüße ☃", {"a": (1, 2)}, ["end"], "fourth")
    history = [([], None, [])]
    sequence = 0
    for attempt, ends in ((1, (1, 2)), (2, (3, 4))):
        store = FileCheckpointStore(path)
        lease = store.runs.acquire(RUN, take_over=False)
        for end in ends:
            sequence += 1
            data = checkpoint(
                sequence, steps[:end], attempt=lease.attempt, inputs={"name": "ä"}, metadata={"tags": {"ü": "ö"}}
            )
            store.runs.save(RUN, data)
            history.append(shown(store))
        assert lease.attempt == attempt
        store.close()
    return history


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    with blocking_allowed(True):
        path = tmp_path_factory.mktemp("original") / "store"
        return path, make(path)


def outcome(path):
    """Read a store in every way: what it shows, or the class of its error."""
    store = FileCheckpointStore(path)
    try:
        seen = shown(store)
    except NAMED as error:
        assert str(error)
        seen = type(error)
    try:
        store.runs.list_runs()
        store.runs.check(None)
        store.runs.load(RUN, "c2")
    except (*NAMED, CheckpointNotFoundError):
        pass
    return seen


def replacements(place, byte, *, is_soak):
    """The bytes to put in the place of one: a flipped bit, and one of the others in turn; or all of them."""
    others = [0, 10, byte ^ 0x80, ord("9"), 255]
    return {byte ^ 1, *(others if is_soak else [others[place % len(others)]])} - {byte}


@pytest.mark.parametrize("number", [1, 2])
def test_every_changed_byte_of_a_segment_is_detected_or_harmless(original, tmp_path, number, caplog, is_soak):
    path, history = original
    copy = tmp_path / "store"
    shutil.copytree(path, copy)
    segment = copy / f"runs/{RUN}/{number:08d}.jsonl"
    whole = segment.read_bytes()
    detected = tried = 0
    for place, byte in enumerate(whole):
        for other in sorted(replacements(place, byte, is_soak=is_soak)):
            tried += 1
            put(segment, place, other)
            seen = outcome(copy)
            if isinstance(seen, type):
                detected += 1
            else:
                assert seen == history[-1], f"byte {place} of segment {number} from {byte} to {other} shows {seen}"
        put(segment, place, byte)
    assert segment.read_bytes() == whole
    assert tried >= len(whole)
    assert detected > tried / 2


@pytest.mark.parametrize("number", [1, 2])
def test_every_truncation_of_a_segment_is_detected_or_shows_an_earlier_point(original, tmp_path, number, caplog):
    path, history = original
    copy = tmp_path / "store"
    shutil.copytree(path, copy)
    segment = copy / f"runs/{RUN}/{number:08d}.jsonl"
    whole = segment.read_bytes()
    for size in reversed(range(len(whole))):
        os.truncate(segment, size)
        seen = outcome(copy)
        if isinstance(seen, type):
            assert seen is CheckpointCorruptedError
        elif number == 1:
            # A later attempt continues from it: all of it must be there, but for the last line, of which there is a copy.
            assert seen == history[-1]
        else:
            assert seen in history, f"cut to {size} bytes, segment {number} shows {seen}"
            store = FileCheckpointStore(copy)
            is_between_lines = size == 0 or whole[size - 1 : size] == b"\n"
            assert is_between_lines or store.runs.load_image(RUN).notices, f"cut to {size} bytes without a word"


def test_a_record_removed_from_the_middle_or_doubled_is_detected(original, tmp_path):
    path, history = original
    for number in (1, 2):
        for change in ("remove", "double", "swap"):
            copy = tmp_path / f"{number}-{change}"
            shutil.copytree(path, copy)
            segment = copy / f"runs/{RUN}/{number:08d}.jsonl"
            lines = segment.read_bytes().splitlines(keepends=True)
            middle = len(lines) - 2
            changed = {
                "remove": lines[:middle] + lines[middle + 1 :],
                "double": [*lines[: middle + 1], *lines[middle:]],
                "swap": [*lines[:middle], lines[middle + 1], lines[middle]],
            }[change]
            segment.write_bytes(b"".join(changed))
            seen = outcome(copy)
            assert isinstance(seen, type) or (number == 1 and seen == history[-1]), (number, change)


def test_a_damaged_run_refuses_to_be_taken_over_and_is_left_as_it_was(original, tmp_path):
    path, _ = original
    copy = tmp_path / "store"
    shutil.copytree(path, copy)
    segment = copy / f"runs/{RUN}/00000002.jsonl"
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-100] + b"#" + whole[-99:])
    damaged = segment.read_bytes()
    store = FileCheckpointStore(copy)
    for _ in range(2):
        with pytest.raises(CheckpointCorruptedError, match=r"00000002\.jsonl"):
            store.runs.acquire(RUN, take_over=False)
    assert segment.read_bytes() == damaged
    names = sorted(file.name for file in segment.parent.iterdir() if not file.name.startswith(".fenced-"))
    assert names == ["00000001.jsonl", "00000002.jsonl", "lock"]  # beside the marks that a claim leaves behind


def test_damage_in_one_run_leaves_the_others_readable(original, tmp_path, caplog):
    path, _ = original
    copy = tmp_path / "store"
    shutil.copytree(path, copy)
    store = FileCheckpointStore(copy)
    store.runs.save("other", checkpoint(1))
    segment = copy / f"runs/{RUN}/00000001.jsonl"
    segment.write_bytes(b"#" + segment.read_bytes()[1:])
    assert store.runs.load("other", "c1").sequence == 1
    assert [info.workflow_id for info in store.runs.list_runs()] == ["other"]
    assert sorted(finding.severity for finding in store.runs.check(None)) == ["corrupt", "ok"]


def test_every_changed_byte_of_a_large_value_is_detected(tmp_path):
    store = FileCheckpointStore(tmp_path / "store")
    with blocking_allowed(True):
        store.runs.save(RUN, checkpoint(1, results("ü" * 40_000)))
    (blob,) = (tmp_path / f"store/runs/{RUN}/blobs").iterdir()
    whole = blob.read_bytes()
    changes = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in range(0, len(whole), 997)]
    changes += [whole[:size] for size in (0, 1, 4096, len(whole) - 1)]
    changes += [whole + b" "]
    for changed in changes:
        blob.write_bytes(changed)
        with pytest.raises(CheckpointCorruptedError, match="blobs/"):
            _ = FileCheckpointStore(tmp_path / "store").runs.load(RUN, "c1").step_results[0].output
        assert [finding.severity for finding in store.runs.check(RUN)] == ["corrupt"]
    blob.unlink()
    with pytest.raises(CheckpointCorruptedError, match="blobs/"):
        _ = FileCheckpointStore(tmp_path / "store").runs.load(RUN, "c1").step_results[0].output


def test_the_errors_of_this_file_are_those_of_the_package():
    assert all(issubclass(kind, FlowckptError) for kind in (*NAMED, DecodingError))
