"""Key files: made once, readable by one, and never quoted."""

from __future__ import annotations

import json
import stat

import pytest

from flowckpt.errors import KeyFileError, SettingError, StoreSpecError
from flowckpt.stores import FileCheckpointStore, MemoryCheckpointStore, open_store
from flowckpt.stores.log.sealing.keys import KeyRing, new_key, read_key_file, write_key_file
from flowckpt.testing import FakeClock
from flowckpt.testing.contract import CheckpointStoreContract
from flowckpt.testing.retention import RetentionContract
from tests.sealing.sealed_runs import AUTHENTICATE, ENCRYPT


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "key"
    write_key_file(path, [ENCRYPT, AUTHENTICATE], is_new=True)
    return path


def test_what_is_written_is_read_again_and_is_for_its_owner_alone(file):
    assert read_key_file(file).keys == (ENCRYPT, AUTHENTICATE)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in file.parent.iterdir()] == ["key"]
    made = new_key("authenticate", clock=FakeClock())
    assert (made.use, made.created_at) == ("authenticate", "2026-01-01T00:00:00Z")
    assert made.secret != new_key().secret


def test_a_key_file_is_never_overwritten_but_by_a_rotation(file):
    before = file.read_bytes()
    with pytest.raises(KeyFileError, match="already") as caught:
        write_key_file(file, [new_key()], is_new=True)
    assert "flowckpt store key rotate" in caught.value.remedy
    assert file.read_bytes() == before
    write_key_file(file, [new_key(), ENCRYPT], is_new=False)
    assert read_key_file(file).get(ENCRYPT.id) == ENCRYPT
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(KeyFileError, match="cannot be written"):
        write_key_file(file.parent / "none" / "key", [new_key()], is_new=True)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o666, 0o610])
def test_a_key_file_that_others_may_use_is_refused_with_what_to_run(file, mode):
    file.chmod(mode)
    with pytest.raises(KeyFileError, match=f"{mode:04o}") as caught:
        read_key_file(file)
    assert caught.value.remedy == f"Run: chmod 600 {file}"
    assert caught.value.path == str(file)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: "", "it is empty"),
        (lambda text: "keys", "not valid JSON"),
        (lambda text: json.dumps({"flowckpt": "keys", "keys": [{"use": "encrypt", "secret": ""}]}), "empty secret"),
        (lambda text: "[]", "no keys"),
        (lambda text: '{"keys": []}', "no keys"),
        (lambda text: text.replace('"keys"', '"locks"'), "no keys"),
        (lambda text: text.replace('"encrypt"', '"read"'), "key 1 is invalid"),
        (lambda text: text.replace('"secret"', '"word"'), "key 1 is not an object"),
        (lambda text: text.replace('"AAEC', '"AAED'), "key 1 has the id"),
        (lambda text: text.replace('"AAEC', '"A*EC'), "not base64"),
        (lambda text: text.replace('"AAEC', '"'), "key 1"),
        (lambda text: json.dumps({"flowckpt": "keys", "keys": json.loads(text)["keys"][:1] * 2}), "duplicate"),
        (lambda text: text + " " * (1 << 20), "too large"),
    ],
    ids=[
        "empty",
        "text",
        "empty secret",
        "list",
        "none",
        "other",
        "use",
        "no secret",
        "changed",
        "not base64",
        "short",
        "twice",
        "huge",
    ],
)
def test_a_file_that_is_no_key_file_is_refused_and_never_quoted(file, change, said):
    file.write_text(change(file.read_text()))
    with pytest.raises(KeyFileError, match=said) as caught:
        read_key_file(file)
    shown = f"{caught.value} {caught.value.remedy} {caught.value.__cause__}"
    assert "AAEC" not in shown
    assert "BQYHCAkK" not in shown


def test_a_key_file_that_is_none_is_refused(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    for path, said in (
        (tmp_path / "none", "cannot be read"),
        (tmp_path, "cannot be read|not a regular"),
        (tmp_path / "pipe", "not a regular"),
        ("", "is empty"),
    ):
        with pytest.raises(KeyFileError, match=said):
            read_key_file(path)


# --- stores that are told of keys ------------------------------------------------------------------------------------


def test_a_store_that_can_do_nothing_with_a_key_refuses_it_and_never_writes_plain(tmp_path, file):
    for spec in (f"sqlite:{tmp_path}/x.db", "postgresql://u:word@h/d", "other:x"):
        for told, said in (
            ({"key_file": file}, "cannot authenticate or encrypt"),
            ({"compression": "gzip"}, "does not compress"),
        ):
            with pytest.raises(StoreSpecError, match=said) as caught:
                open_store(spec, **told)
            assert "word" not in str(caught.value)
    assert not (tmp_path / "x.db").exists()
    assert isinstance(open_store("memory:", key_file=file), MemoryCheckpointStore)  # nothing of it comes to rest


def test_the_file_store_takes_its_keys_from_one_place(tmp_path, file):
    store = open_store(f"file:{tmp_path}/s", key_file=file, compression="gzip")
    assert store.runs.seals.protection.ring.newest == ENCRYPT
    assert store.runs.seals.protection.compression == "gzip"
    with pytest.raises(SettingError, match="both key_file and keys"):
        FileCheckpointStore(tmp_path / "s", key_file=file, keys=KeyRing([ENCRYPT]))
    with pytest.raises(SettingError, match="'zip'"):
        FileCheckpointStore(tmp_path / "s", compression="zip")
    with pytest.raises(KeyFileError):
        FileCheckpointStore(tmp_path / "s", key_file=tmp_path / "none")


class TestSealedStoreContract(RetentionContract, CheckpointStoreContract):
    """An encrypted and packed store keeps every promise of the port."""

    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.path = tmp_path / "store"

    def make_store(self):
        return FileCheckpointStore(self.path, keys=KeyRing([ENCRYPT]), compression="zstd")

    def reopen(self, store):
        return self.make_store()
