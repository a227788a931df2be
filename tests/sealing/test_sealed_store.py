"""A store with a key: what was changed, swapped, spliced, replayed, cut or forged is found by name."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    ForeignRecordError,
    KeyMissingError,
    UnauthenticatedRecordError,
    UnsupportedSchemaError,
    WrongKeyError,
)
from flowckpt.stores import FileCheckpointStore
from flowckpt.stores.log.sealing.keys import Key, KeyRing
from flowckpt.testing.contract import checkpoint, results
from tests.sealing.sealed_runs import (
    AUTHENTICATE,
    ENCRYPT,
    NEXT,
    RINGS,
    RUN,
    SECRET,
    STRANGE,
    bodies,
    heads,
    lines,
    make,
    put,
    rechained,
    save_attempt,
    segment,
    shown,
    steps,
)

NAMED = (CheckpointCorruptedError, ForeignRecordError, UnsupportedSchemaError)
USES = sorted(RINGS)


@pytest.fixture(scope="module", params=USES)
def original(request, tmp_path_factory):
    ring = RINGS[request.param]
    path = make(tmp_path_factory.mktemp("original") / "store", keys=ring)
    return path, ring, shown(FileCheckpointStore(path, keys=ring))


@pytest.fixture
def copy(original, tmp_path):
    path, ring, _ = original
    shutil.copytree(path, tmp_path / "store")
    return tmp_path / "store", ring


def outcome(path, ring):
    """What a reader with the key is shown, or the class of the error; a check, a list and a claim agree with it."""
    store = FileCheckpointStore(path, keys=ring)
    try:
        seen = shown(store)
    except (*NAMED, UnauthenticatedRecordError) as error:
        found = [finding.severity for finding in store.runs.check(None)]
        assert "corrupt" in found, error
        with pytest.raises((*NAMED, UnauthenticatedRecordError, CheckpointNotFoundError)):
            store.runs.acquire(RUN, take_over=False)
        return type(error)
    return seen


@pytest.mark.parametrize("place", ["1", "2", "head", "store.json", "keys-00000001.json"])
def test_every_changed_byte_is_found_or_harmless(original, copy, place, caplog):
    path, ring = copy
    *_, whole = original
    file = {
        "head": heads(path)[-1],
    }.get(place, path / place if "." in place else None)
    file = file or segment(path, int(place))
    data = file.read_bytes()
    found = 0
    for at, byte in enumerate(data):
        put(file, at, byte ^ 1)
        try:
            seen = shown(FileCheckpointStore(path, keys=ring))
        except (*NAMED, UnauthenticatedRecordError):
            found += 1
        except WrongKeyError:
            assert place == "head"  # a key's id has no checksum there
            found += 1
        else:
            assert seen == whole, f"byte {at}"
        put(file, at, byte)
    assert file.read_bytes() == data
    assert found > (len(data) * 0.6 if place in "12" else 30)


def test_every_truncation_is_found_that_takes_a_record(original, copy):
    """Without a key, the end of the newest segment may be torn. With one, its last owner left word of the end."""
    path, ring = copy
    *_, whole = original
    for number in (1, 2):
        data = segment(path, number).read_bytes()
        ends = {at + near for at, byte in enumerate(data) if byte == 10 for near in (-1, 0, 1, 2)}
        for size in sorted((size for size in {*range(0, len(data), 3), *ends} if size < len(data)), reverse=True):
            os.truncate(segment(path, number), size)
            try:
                seen = shown(FileCheckpointStore(path, keys=ring))
            except CheckpointCorruptedError:
                continue
            # the last line alone can be restored: it has a copy in the segment that continues it, or lacks its line feed
            assert seen == whole, (number, size)
            assert number == 1 or size == len(data) - 1
        segment(path, number).write_bytes(data)


def cut(path, change):
    """Take the end of the run away in some way."""
    if "record" in change:
        segment(path, 2).write_bytes(b"".join(lines(path, 2)[:-1]))
    if "segment" in change:
        segment(path, 2).unlink()
    if "all" in change:
        segment(path, 1).unlink()
    if "head" in change:
        heads(path)[-1].unlink()
    if "empty" in change:
        heads(path)[-1].write_bytes(b"")


@pytest.mark.parametrize(
    "change", ["record", "segment", "segment all", "record head", "segment head", "head", "empty", "record empty"]
)
def test_an_end_that_was_cut_is_found(copy, change):
    path, ring = copy
    cut(path, change)
    store = FileCheckpointStore(path, keys=ring)
    assert "corrupt" in [finding.severity for finding in store.runs.check(None)]
    with pytest.raises(CheckpointCorruptedError, match="missing"):
        store.runs.acquire(RUN, take_over=False)
    # Who knows that nothing is missing can say so, and it is true for good.
    if "all" not in change:
        trusting = FileCheckpointStore(path, keys=ring, trust=True)
        kept = shown(trusting)
        trusting.runs.trust(RUN)
        assert shown(FileCheckpointStore(path, keys=ring)) == kept


def test_what_nobody_can_find_is_a_whole_older_directory(tmp_path):
    """Stated, so that nobody thinks otherwise: a directory that is copied back as a whole is as true as it was then."""
    path, ring = tmp_path / "store", RINGS["encrypt"]
    save_attempt(path, (1, 2), steps(), keys=ring)
    older = shown(FileCheckpointStore(path, keys=ring))
    shutil.copytree(path / "runs", tmp_path / "older")
    save_attempt(path, (3, 4), steps(), keys=ring)
    shutil.rmtree(path / "runs")
    shutil.copytree(tmp_path / "older", path / "runs")
    assert shown(FileCheckpointStore(path, keys=ring)) == older


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("change", ["swap", "remove", "double", "edit", "strip", "header"])
def test_records_that_are_swapped_removed_doubled_or_edited_are_found_though_their_checksums_fit(
    original, copy, number, change
):
    path, ring = copy
    found = bodies(path, number)
    if change == "swap":
        found[-1], found[-2] = found[-2], found[-1]
    elif change == "remove":
        del found[-2]
    elif change == "double":
        found.append(found[-1])
    elif change == "edit":
        found[-1] = found[-1].replace(b'"sequence":', b'"sequence":1', 1).replace(b'"data":"', b'"data":"AAAA', 1)
    elif change == "strip":
        found = [body[: body.rindex(b',"mac":"')] if b',"mac":"' in body else body for body in found]
    else:
        found[0] = found[0].replace(b'"created_at":"20', b'"created_at":"19', 1)
    segment(path, number).write_bytes(rechained(found))
    seen = outcome(path, ring)
    # The last line of the older segment has a copy in the newer one, and what stands behind it counts for nothing.
    assert seen is CheckpointCorruptedError or (number == 1 and change in ("edit", "double") and seen == original[2])


@pytest.mark.parametrize("is_renamed", [False, True], ids=["as it is", "renamed"])
@pytest.mark.parametrize("source", ["another run", "another store", "an earlier life"])
def test_a_segment_that_was_put_in_from_elsewhere_is_found(tmp_path, source, is_renamed):
    ring = RINGS["encrypt"]
    path = tmp_path / "store"
    here, run = path, RUN
    if source == "an earlier life":
        make(path, keys=ring)
        earlier = segment(path, 2).read_bytes()
        FileCheckpointStore(path, keys=ring).runs.clear(RUN)
    elif source == "another store":
        here = tmp_path / "other"
        make(here, keys=ring)
        earlier = segment(here, 2).read_bytes()
    else:
        run = "run-2"
        store = FileCheckpointStore(path, keys=ring)
        for _ in range(2):
            lease = store.runs.acquire(run, take_over=False)
            store.runs.save(run, checkpoint(lease.last_sequence + 1, steps()[: lease.attempt], attempt=lease.attempt))
            store.runs.release(run)
        earlier = segment(path, 2, run).read_bytes()
    make(path, keys=ring)
    if is_renamed:
        found = [line[: line.rindex(b',"sha256":"')] for line in earlier.splitlines()]
        said = json.loads(lines(path, 2)[0])
        header = json.loads(found[0] + b"}")
        header["workflow_id"], header["seal"]["store"] = RUN, said["seal"]["store"]
        found[0] = json.dumps(header, separators=(",", ":"))[:-1].encode()
        earlier = rechained(found)
    segment(path, 2).write_bytes(earlier)
    assert outcome(path, ring) in (CheckpointCorruptedError, ForeignRecordError)


def test_two_runs_that_changed_places_are_found(tmp_path):
    path, ring = tmp_path / "store", RINGS["authenticate"]
    store = FileCheckpointStore(path, keys=ring)
    for run in ("a", "b"):
        store.runs.save(run, checkpoint(1, results(run)))
    store.close()
    (path / "runs/a").rename(path / "runs/c")
    (path / "runs/b").rename(path / "runs/a")
    (path / "runs/c").rename(path / "runs/b")
    with pytest.raises(ForeignRecordError):
        store.runs.load("a", "c1")
    assert [finding.severity for finding in store.runs.check(None)] == ["corrupt", "corrupt"]


# --- downgrades ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["on top", "instead", "tombstone"])
def test_records_without_a_seal_are_refused_where_there_is_a_key(copy, tmp_path, change):
    path, ring = copy
    make(tmp_path / "plain")  # what somebody without the key can write
    forged = segment(tmp_path / "plain", 1).read_bytes()
    if change == "on top":
        found = [
            line[: line.rindex(b',"sha256":"')] for line in segment(tmp_path / "plain", 2).read_bytes().splitlines()
        ]
        found[0] = found[0].replace(b'"segment":2', b'"segment":3')
        found[1] = b'{"adopts":{"segment":0}'
        segment(path, 3).write_bytes(rechained(found))
    elif change == "instead":
        segment(path, 1).write_bytes(forged)
        segment(path, 2).unlink()
    else:
        header = json.loads(forged.splitlines()[0]) | {"segment": 3, "kind": "cleared"}
        del header["sha256"]
        segment(path, 3).write_bytes(rechained([json.dumps(header, separators=(",", ":"))[:-1].encode()]))
    assert outcome(path, ring) is UnauthenticatedRecordError


def test_a_lost_identity_is_not_made_anew(copy):
    path, ring = copy
    text = (path / "store.json").read_bytes()
    (path / "store.json").unlink()
    for run in (RUN, "new"):
        for told in ({"keys": ring}, {}):
            with pytest.raises(CheckpointCorruptedError, match=r"store\.json") as caught:
                FileCheckpointStore(path, **told).runs.acquire(run, take_over=False)
    (path / "store.json").write_text(caught.value.remedy.partition("it again: ")[2])  # what the error says, helps
    assert shown(FileCheckpointStore(path, keys=ring))[0]
    assert json.loads((path / "store.json").read_text()) == json.loads(text)


# --- keys ------------------------------------------------------------------------------------------------------------


def test_a_missing_or_wrong_key_is_not_taken_for_damage(tmp_path):
    path = make(tmp_path / "store", keys=RINGS["encrypt"])
    for told, kind in (({}, KeyMissingError), ({"keys": KeyRing([STRANGE])}, WrongKeyError)):
        store = FileCheckpointStore(path, **told)
        for ask in (lambda store=store: shown(store), store.runs.list_runs, lambda store=store: store.runs.check(RUN)):
            with pytest.raises(kind) as caught:
                ask()
            assert caught.value.key_id == ENCRYPT.id
            assert ENCRYPT.id in str(caught.value)
        with pytest.raises(kind):
            store.runs.acquire(RUN, take_over=False)
        assert [finding.severity for finding in store.runs.check(None)] == ["locked"]
        assert segment(path, 3).exists() is False


def test_what_is_only_authenticated_can_be_read_without_the_key_and_says_so(tmp_path):
    path = make(tmp_path / "store", keys=RINGS["authenticate"])
    store = FileCheckpointStore(path)
    assert shown(store) == shown(FileCheckpointStore(path, keys=RINGS["authenticate"]))
    assert [finding.severity for finding in store.runs.check(RUN)] == ["notice", "ok"]
    assert "only checksums were verified" in store.runs.check(RUN)[0].detail


def test_keys_are_rotated_by_putting_a_new_one_first(tmp_path):
    path = make(tmp_path / "store", keys=KeyRing([ENCRYPT]))
    before = shown(FileCheckpointStore(path, keys=KeyRing([NEXT, ENCRYPT])))
    save_attempt(path, (5,), [*steps(), *results("fifth")], keys=KeyRing([NEXT, ENCRYPT]))
    after = shown(FileCheckpointStore(path, keys=KeyRing([STRANGE, ENCRYPT, NEXT])))
    assert after[0][1:] == before[0]
    assert NEXT.id in str(FileCheckpointStore(path, keys=KeyRing([NEXT, ENCRYPT])).runs.check(RUN))
    with pytest.raises(WrongKeyError) as caught:
        shown(FileCheckpointStore(path, keys=KeyRing([NEXT])))
    assert (caught.value.key_id, caught.value.known) == (ENCRYPT.id, (NEXT.id,))


def test_a_key_that_only_authenticated_may_encrypt_from_now_on(tmp_path):
    ring = KeyRing([Key(AUTHENTICATE.secret, "encrypt")])
    path = make(tmp_path / "store", keys=RINGS["authenticate"])
    save_attempt(path, (5,), [*steps(), *results("fifth")], keys=ring)
    assert len(shown(FileCheckpointStore(path, keys=ring))[0]) == 5
    assert b"fifth" not in segment(path, 3).read_bytes()


# --- old runs --------------------------------------------------------------------------------------------------------


def test_a_run_that_is_older_than_the_key_is_refused_until_somebody_trusts_it_and_proved_from_then_on(tmp_path):
    path, ring = make(tmp_path / "store"), RINGS["encrypt"]
    before = shown(FileCheckpointStore(path))
    assert outcome(path, ring) is UnauthenticatedRecordError
    with pytest.raises(UnauthenticatedRecordError):
        FileCheckpointStore(path, keys=ring).runs.list_runs()
    FileCheckpointStore(path, keys=ring, trust=True).runs.trust(RUN)
    assert shown(FileCheckpointStore(path, keys=ring)) == before
    save_attempt(path, (5,), [*steps(), *results("fifth")], keys=ring)
    assert len(shown(FileCheckpointStore(path, keys=ring))[0]) == 5
    # What was written without a key is proved by the digest in what was written with one.
    for number in (1, 2):
        data = segment(path, number).read_bytes()
        found = bodies(path, number)
        found[-1] = found[-1].replace(SECRET.encode(), b"forged")
        found[-2] = found[-2].replace(SECRET.encode(), b"forged")
        segment(path, number).write_bytes(rechained(found))
        assert segment(path, number).read_bytes() != data
        assert outcome(path, ring) is CheckpointCorruptedError
        segment(path, number).write_bytes(data)


def test_trust_needs_a_key_and_a_run_and_heals_nothing(copy):
    path, ring = copy
    with pytest.raises(ValueError):
        FileCheckpointStore(path, keys=ring).runs.trust(RUN)
    with pytest.raises(CheckpointNotFoundError):
        FileCheckpointStore(path, keys=ring, trust=True).runs.trust("other")
    found = bodies(path, 2)
    found[-1], found[-2] = found[-2], found[-1]
    segment(path, 2).write_bytes(rechained(found))
    with pytest.raises(CheckpointCorruptedError):
        FileCheckpointStore(path, keys=ring, trust=True).runs.trust(RUN)


# --- what can be read ------------------------------------------------------------------------------------------------


def test_nothing_of_an_encrypted_run_can_be_read_in_any_file(tmp_path):
    path = tmp_path / "store"
    store = FileCheckpointStore(path, keys=RINGS["encrypt"])
    lease = store.runs.acquire(RUN, take_over=False)
    for number, output in enumerate((SECRET, [SECRET] * 5_000), 1):
        store.note_started(RUN, f"{SECRET}-{number}")
        store.runs.save(RUN, checkpoint(number, results(SECRET, output)[:number], attempt=lease.attempt))
    store.note_started(RUN, "step of the name " + SECRET)
    assert store.runs.started_steps(RUN) == (1, ("step of the name " + SECRET,))
    assert FileCheckpointStore(path).runs.started_steps(RUN) == (0, ())  # and not the cipher text as a step's path
    files = [file for file in path.rglob("*") if file.is_file()]
    assert len(files) >= 5
    for file in files:
        assert SECRET.encode() not in file.read_bytes(), file
        assert file.stat().st_mode & 0o077 == 0
    store.close()


def test_a_hint_that_does_not_open_is_no_hint(tmp_path):
    path = make(tmp_path / "store", keys=RINGS["encrypt"])
    lock = path / f"runs/{RUN}/lock"
    for text in (b"2\nplain\n\0", b"2\n1:AAAA\n\0", b"9\n1:AAAA\n\0", b"x\n\0"):
        lock.write_bytes(text)
        assert FileCheckpointStore(path, keys=RINGS["encrypt"]).runs.started_steps(RUN)[1] in ((), ("1:AAAA",))


def test_a_large_value_is_encrypted_once_and_every_change_to_it_is_found(tmp_path):
    path, ring = tmp_path / "store", RINGS["encrypt"]
    store = FileCheckpointStore(path, keys=ring)
    lease = store.runs.acquire(RUN, take_over=False)
    for number in (1, 2):
        store.runs.save(RUN, checkpoint(number, results(*[SECRET * 4_000] * number), attempt=lease.attempt))
    store.close()
    (file,) = (path / f"runs/{RUN}/blobs").iterdir()
    assert file.suffix == ".sealed"
    data = file.read_bytes()
    for at in (*range(0, 250, 7), len(data) // 2, len(data) - 1):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CheckpointCorruptedError, match="blobs/"):
            _ = FileCheckpointStore(path, keys=ring).runs.load(RUN, "c2").step_results[0].output
        assert [finding.severity for finding in store.runs.check(RUN)] == ["corrupt"]
    for size in (0, 100, len(data) - 1):
        file.write_bytes(data[:size])
        with pytest.raises(CheckpointCorruptedError, match="blobs/"):
            _ = FileCheckpointStore(path, keys=ring).runs.load(RUN, "c2").step_results[0].output


def test_two_runs_share_an_encrypted_value(tmp_path):
    path, ring = tmp_path / "store", RINGS["encrypt"]
    store = FileCheckpointStore(path, keys=ring)
    store.runs.save("a", checkpoint(1, results(SECRET * 4_000)))
    taken = store.runs.load("a", "c1")
    (blobs,) = taken.step_results.history.blobs.values()
    store.runs.acquire("b", take_over=False)
    store.runs.share_values("a", "b", {digest: blob.size for digest, blob in blobs.items()})
    store.runs.save("b", taken)
    files = [file for run in "ab" for file in (path / f"runs/{run}/blobs").iterdir()]
    assert len({file.stat().st_ino for file in files}) == 1
    assert len(files) == 2
    store.runs.clear("a")
    assert store.runs.load("b", "c1").step_results[0].output == SECRET * 4_000
    store.close()


# --- packing ---------------------------------------------------------------------------------------------------------


def test_switching_the_compression_never_makes_old_records_unreadable(tmp_path):
    """Pitfall: compression that is chosen by configuration, and not by the record."""
    path = tmp_path / "store"
    texts = []
    for attempt, compression in enumerate(("zstd", "none", "gzip", "auto", "none"), 1):
        texts += [f"{attempt}" * 10_000, f"{attempt}" * 100_000]
        save_attempt(path, (len(texts),), results(*texts), compression=compression)
    for compression in ("none", "gzip", "zstd"):
        store = FileCheckpointStore(path, compression=compression)
        latest = store.runs.load_latest(RUN)
        assert [result.output for result in latest.step_results] == texts
        assert [finding.severity for finding in store.runs.check(None)] == ["ok"]
        assert [info.steps for info in store.runs.list_runs()] == [len(texts)]
    marks = [json.loads(lines(path, number)[-1]).get("packed") for number in range(1, 6)]
    assert marks == ["zstd", None, "gzip", "zstd", None]
    assert sorted(file.suffix for file in (path / f"runs/{RUN}/blobs").iterdir()) == ["", "", ".gz", ".zst", ".zst"]


def test_small_records_stay_readable_where_large_ones_are_packed(tmp_path):
    path = tmp_path / "store"
    save_attempt(path, (1, 2), results("small", "large" * 2_000), compression="gzip")
    first, second = lines(path, 1)[1:]
    assert b"small" in first
    assert second.startswith(b'{"packed":"gzip","size":')
    assert len(second) < 1_000


def test_a_bomb_in_a_store_is_corrupt_and_costs_nothing(tmp_path):
    import zlib
    from base64 import b64encode

    path = make(tmp_path / "store")
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b64encode(packer.compress(bytes(200_000_000)) + packer.flush()).decode()
    for size in (100, 10**15):
        line = json.dumps({"packed": "gzip", "size": size, "data": bomb}, separators=(",", ":"))[:-1].encode()
        segment(path, 2).write_bytes(rechained([*bodies(path, 2)[:-1], line]))
        with pytest.raises(CheckpointCorruptedError, match="does not open"):
            shown(FileCheckpointStore(path))
    within = json.dumps({"packed": "gzip", "size": 1, "data": ""}, separators=(",", ":"))[:-1].encode()
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    inner = b64encode(packer.compress(within) + packer.flush()).decode()
    line = json.dumps({"packed": "gzip", "size": len(within), "data": inner}, separators=(",", ":"))[:-1].encode()
    segment(path, 2).write_bytes(rechained([*bodies(path, 2)[:-1], line]))
    with pytest.raises(CheckpointCorruptedError, match="within a packed one"):
        shown(FileCheckpointStore(path))


def test_a_plain_store_stays_as_it_was(tmp_path):
    path = make(tmp_path / "store")
    assert sorted(file.name for file in path.rglob("*") if not file.name.startswith(".")) == [
        *("00000001.jsonl", "00000002.jsonl", "lock", "reserve", "run-1", "runs")
    ]
    assert b"seal" not in segment(path, 1).read_bytes()


def test_a_run_that_arrives_is_sealed_as_its_new_store_is(tmp_path):
    """A copy of a plain run into an encrypted store, and of that one into a plain store."""
    import asyncio

    from flowckpt.maintenance import copy_run

    plain = FileCheckpointStore(make(tmp_path / "plain"))
    sealed = FileCheckpointStore(tmp_path / "sealed", keys=RINGS["encrypt"])
    other = FileCheckpointStore(tmp_path / "other")
    asyncio.run(copy_run(plain, sealed, RUN))
    asyncio.run(copy_run(sealed, other, RUN))
    assert shown(sealed) == shown(plain) == shown(other)
    assert [finding.severity for finding in sealed.runs.check(None)] == ["ok"]
    assert all(SECRET.encode() not in file.read_bytes() for file in (tmp_path / "sealed").rglob("*") if file.is_file())
    with pytest.raises(KeyMissingError):
        asyncio.run(copy_run(plain, FileCheckpointStore(tmp_path / "sealed"), RUN, new_id="another"))
