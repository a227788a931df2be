"""Messages in a protected store: as secret, and as hard to forge, as the records beside them."""

from __future__ import annotations

import json
import shutil

import attrs
import pytest

from flowckpt.errors import CheckpointCorruptedError, KeyMissingError, UnauthenticatedRecordError, WrongKeyError
from flowckpt.stores import FileCheckpointStore
from flowckpt.stores.log.sealing.keys import KeyRing
from flowckpt.testing.abilities import signal
from tests.sealing.sealed_runs import NEXT, RINGS, RUN, SECRET, make

SENT = attrs.evolve(signal("one", {"word": SECRET}), by=SECRET)


@pytest.fixture(params=["encrypt", "authenticate"])
def kind(request):
    return request.param


@pytest.fixture
def path(tmp_path, kind):
    make(tmp_path / "store", keys=RINGS[kind])
    store = FileCheckpointStore(tmp_path / "store", keys=RINGS[kind])
    assert store.runs.send_signal(RUN, SENT)
    store.close()
    return tmp_path / "store"


def files(path):
    return list((path / "runs").rglob("signals/*.json"))


def test_a_message_comes_back_and_an_encrypted_one_shows_nothing(path, kind):
    assert FileCheckpointStore(path, keys=RINGS[kind]).runs.signals(RUN) == [SENT]
    [file] = files(path)
    assert (SECRET.encode() in file.read_bytes()) is (kind == "authenticate")


def test_a_message_that_was_changed_is_refused_at_every_byte(path, kind):
    [file] = files(path)
    content = file.read_bytes()
    for place in range(0, len(content), 7):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises((CheckpointCorruptedError, WrongKeyError, UnauthenticatedRecordError)) as refused:
            assert FileCheckpointStore(path, keys=RINGS[kind]).runs.signals(RUN) == [SENT]
        assert refused.value.workflow_id == RUN


def test_a_message_of_another_run_or_under_another_name_is_refused(path, kind):
    [file] = files(path)
    store = FileCheckpointStore(path, keys=RINGS[kind])
    other = attrs.evolve(SENT, signal_id="two")
    store.runs.send_signal(RUN, other)
    second = next(each for each in files(path) if each != file)
    second.write_bytes(file.read_bytes())
    with pytest.raises(CheckpointCorruptedError, match="name of another message"):
        store.runs.signals(RUN)


def test_a_message_written_without_the_key_is_not_believed(tmp_path, path, kind):
    make(tmp_path / "plain")
    plain = FileCheckpointStore(tmp_path / "plain")
    plain.runs.send_signal(RUN, attrs.evolve(SENT, signal_id="forged"))
    for file in files(tmp_path / "plain"):
        shutil.copy(file, files(path)[0].parent)
    with pytest.raises(UnauthenticatedRecordError):
        FileCheckpointStore(path, keys=RINGS[kind]).runs.signals(RUN)


def test_who_has_no_key_cannot_send_to_a_run_that_has_one(path):
    before = {file: file.read_bytes() for file in files(path)}
    with pytest.raises(KeyMissingError):
        FileCheckpointStore(path).runs.send_signal(RUN, attrs.evolve(SENT, signal_id="two"))
    with pytest.raises((WrongKeyError, KeyMissingError, UnauthenticatedRecordError)):
        FileCheckpointStore(path, keys=KeyRing([NEXT])).runs.send_signal(RUN, attrs.evolve(SENT, signal_id="two"))
    assert {file: file.read_bytes() for file in files(path)} == before


def test_a_plain_message_can_be_read_by_people(tmp_path):
    make(tmp_path)
    FileCheckpointStore(tmp_path).runs.send_signal(RUN, SENT)
    [file] = files(tmp_path)
    header, message = map(json.loads, file.read_text().splitlines())
    assert (header["flowckpt"], header["workflow_id"]) == ("signal", RUN)
    assert (message["name"], message["data"]) == ("go", {"word": SECRET})
