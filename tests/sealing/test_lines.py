"""A sealed line opens at its one place, under its one key, and nowhere else."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowckpt.core.system import external
from flowckpt.core.system.external import MODULES
from flowckpt.errors import SettingError
from flowckpt.stores.log.sealing import cipher
from flowckpt.stores.log.sealing.cipher import LARGEST, choose_method, pack, unpack
from flowckpt.stores.log.sealing.keys import Key, KeyRing, derive_key
from flowckpt.stores.log.sealing.lines import LineSeal, Origin, ValueSeal, inflate
from flowckpt.stores.log.sealing.protection import SealBrokenError

SECRET = bytes(range(32))
ORIGIN = Origin("store", "run", 3, "aa" * 16)
BODY = b'{"step_results":[],"sequence":2'
PREVIOUS = bytes(range(100, 132))
LARGE = b'{"step_results":["%b"]' % (b"word " * 4000)


def seal(use="encrypt", origin=ORIGIN, secret=SECRET, compression=""):
    return LineSeal(compression=compression, key=Key(secret, use), origin=origin)


@pytest.mark.parametrize("use", ["encrypt", "authenticate"])
@pytest.mark.parametrize("method", ["", "gzip", "zstd"])
@pytest.mark.parametrize("body", [BODY, LARGE], ids=["small", "large"])
def test_what_is_sealed_opens_and_is_one_json_object(use, method, body):
    line = seal(use, compression=method).seal(body, 5, PREVIOUS)
    assert seal(use).open(line, 5, PREVIOUS) == body  # the reader was not told of the compression
    said = json.loads(line + b"}")
    assert ("step_results" in said) == (use == "authenticate" and (body is BODY or not method))
    assert (len(line) < len(body)) == (body is LARGE and bool(method))


@settings(suppress_health_check=[HealthCheck.too_slow])  # the first key takes long on a busy machine
@given(st.binary(max_size=300), st.integers(1, 2**40), st.binary(min_size=32, max_size=32))
def test_any_bytes_come_back(body, number, previous):
    assert seal().open(seal().seal(body, number, previous), number, previous) == body
    assert seal("authenticate").verify(
        seal("authenticate").authenticate(body or b"{", number, previous), number, previous
    )


@pytest.mark.parametrize("use", ["encrypt", "authenticate"])
@pytest.mark.parametrize(
    ("other", "number", "previous"),
    [
        ({}, 6, PREVIOUS),
        ({}, 5, bytes(32)),
        ({"origin": Origin("other", "run", 3, "aa" * 16)}, 5, PREVIOUS),
        ({"origin": Origin("store", "other", 3, "aa" * 16)}, 5, PREVIOUS),
        ({"origin": Origin("store", "run", 4, "aa" * 16)}, 5, PREVIOUS),
        ({"origin": Origin("store", "run", 3, "bb" * 16)}, 5, PREVIOUS),
        ({"origin": Origin("storer", "un", 3, "aa" * 16)}, 5, PREVIOUS),
        ({"secret": bytes(32)}, 5, PREVIOUS),
    ],
    ids=["line", "line before", "store", "run", "segment", "nonce", "parts that run into one", "key"],
)
def test_a_line_opens_at_one_place_only(use, other, number, previous):
    line = seal(use).seal(BODY, 5, PREVIOUS)
    with pytest.raises(SealBrokenError):
        seal(use, **other).open(line, number, previous)


@pytest.mark.parametrize("use", ["encrypt", "authenticate"])
@pytest.mark.parametrize("method", ["", "zstd"])
def test_no_byte_of_a_sealed_line_can_be_changed(use, method):
    line = seal(use, compression=method).seal(LARGE if method else BODY, 5, PREVIOUS)
    for place, byte in enumerate(line):
        for other in {byte ^ 1, byte ^ 0x20, 0} - {byte}:
            changed = line[:place] + bytes([other]) + line[place + 1 :]
            try:
                found = seal(use).open(changed, 5, PREVIOUS)
            except SealBrokenError:
                continue
            # base64 has spare bits in its last sign; those, the chain of checksums covers
            assert found == (LARGE if method else BODY), place


def test_a_plain_line_or_one_for_another_use_does_not_pass_for_a_sealed_one():
    for body in (BODY, b"", b"{", seal("authenticate").seal(BODY, 5, PREVIOUS)):
        with pytest.raises(SealBrokenError):
            seal("encrypt").open(body, 5, PREVIOUS)
    for body in (BODY, b"", b"{", seal("encrypt").seal(BODY, 5, PREVIOUS)):
        with pytest.raises(SealBrokenError):
            seal("authenticate").open(body, 5, PREVIOUS)


def test_the_same_body_never_looks_the_same_twice():
    assert seal().seal(BODY, 5, PREVIOUS) != seal().seal(BODY, 6, PREVIOUS)
    other = seal(origin=Origin("store", "run", 3, "bb" * 16))
    assert seal().seal(BODY, 5, PREVIOUS) != other.seal(BODY, 5, PREVIOUS)


def test_a_cipher_of_many_parts_notices_what_is_left_out_or_moved(monkeypatch):
    monkeypatch.setattr(cipher, "PART", 10)
    aes = cipher.Cipher(SECRET)
    data = bytes(range(35))
    made = aes.encrypt(data, 1, b"x")
    assert aes.decrypt(made, 1, b"x") == data
    assert aes.decrypt(aes.encrypt(b"", 1, b""), 1, b"") == b""
    parts = [made[at : at + 26] for at in range(0, len(made), 26)]
    wrong = ([], parts[:-1], parts[1:], [parts[1], parts[0], *parts[2:]], [*parts, parts[-1]], parts[:2] + parts[3:])
    for changed in wrong:
        with pytest.raises(SealBrokenError):
            aes.decrypt(b"".join(changed), 1, b"x")


# --- packing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["gzip", "zstd"])
def test_a_bomb_is_never_unpacked_further_than_the_record_says(method):
    bomb = pack(bytes(50_000_000), method)
    assert len(bomb) < 100_000
    for size in (0, 10, 1_000_000):
        with pytest.raises(SealBrokenError, match="does not unpack to the recorded"):
            unpack(bomb, method, size)
    for size in (LARGEST + 1, 10**18, -1):
        with pytest.raises(SealBrokenError, match="ever packed"):
            unpack(bomb, method, size)
    line = json.dumps({"packed": method, "size": 10**18, "data": ""}, separators=(",", ":"))[:-1].encode()
    with pytest.raises(SealBrokenError):
        inflate(line)


@pytest.mark.parametrize("method", ["gzip", "zstd"])
def test_what_does_not_unpack_to_exactly_what_was_packed_is_broken(method):
    data = b"word " * 1000
    made = pack(data, method)
    assert unpack(made, method, len(data)) == data
    for changed in (made[:-1], made + b"x", made + made, b"", b"x" + made):
        with pytest.raises(SealBrokenError):
            unpack(changed, method, len(data))
    with pytest.raises(SealBrokenError):
        unpack(made, method, len(data) + 1)


def test_what_does_not_get_smaller_is_not_packed():
    noise = derive_key(SECRET, purpose=b"noise") * 1
    assert pack(noise, "zstd") is None
    assert pack(noise, "gzip") is None


@pytest.mark.parametrize("mark", ["lzma", "gzip,zstd", "aes-gcm", "gzip,aes-gcm", ""])
def test_a_line_that_is_packed_in_an_unknown_way_is_refused(mark):
    with pytest.raises(SealBrokenError):
        inflate(b'{"packed":"%b","size":3,"data":"YWJj"' % mark.encode())


def test_zstd_that_is_not_installed_is_refused_where_it_is_asked_for_and_left_out_where_it_is_not(monkeypatch):
    monkeypatch.setitem(sys.modules, MODULES["zstd"], None)
    monkeypatch.delitem(vars(external), "zstd", raising=False)
    assert choose_method("auto") == "gzip"
    for refused in (lambda: choose_method("zstd"), lambda: unpack(b"", "zstd", 1)):
        with pytest.raises(SettingError, match="backports.zstd") as caught:
            refused()
        assert "flowckpt[zstd]" in caught.value.remedy
    with pytest.raises(SettingError, match="'zip'"):
        choose_method("zip")


def test_encryption_without_its_package_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, MODULES["aead"], None)
    monkeypatch.delitem(vars(external), "aead", raising=False)
    with pytest.raises(SettingError, match="cryptography") as caught:
        seal("encrypt")
    assert "flowckpt[crypto]" in caught.value.remedy
    seal("authenticate")


# --- keys and values -------------------------------------------------------------------------------------------------


def test_keys_are_named_by_their_secret_and_never_show_it():
    key = Key(SECRET)
    assert key.id == Key(SECRET, "authenticate").id != Key(bytes(32)).id
    assert len(key.id) == 16
    assert "secret" not in repr(key)
    assert repr(KeyRing([key])) == f"KeyRing({key.id})"
    for wrong in (lambda: Key(b"short"), lambda: Key(SECRET, "read"), lambda: KeyRing([])):
        with pytest.raises(ValueError):
            wrong()


def test_derivation_is_that_of_rfc_5869():
    """Test case 1 of the RFC has another salt; this one was made with an independent implementation."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    salt = b"flowckpt v1" + (5).to_bytes(8, "big") + b"store" + (1).to_bytes(8, "big") + b"x"
    expected = HKDF(SHA256(), 32, salt, b"lines").derive(SECRET)
    assert derive_key(SECRET, b"store", b"x", purpose=b"lines") == expected


@pytest.mark.parametrize("method", ["", "gzip", "zstd"])
@pytest.mark.parametrize("use", [None, "encrypt", "authenticate"])
def test_a_large_value_is_found_again_whatever_was_done_to_it(method, use):
    ring = None if use is None else KeyRing([Key(SECRET, use)])
    content, digest = b'"%b"' % (b"word " * 20_000), "ab" * 32
    name, data = ValueSeal(lambda: "store", ring, method).seal(digest, content)
    reader = ValueSeal(lambda: "store", ring)
    assert name in reader.names(digest)
    assert reader.open(name, data, digest, len(content)) == content
    assert (digest in name) == (use != "encrypt")
    assert (b"word word" in data) == (not method and use != "encrypt")
    if use == "encrypt":
        old = ValueSeal(lambda: "store", KeyRing([Key(bytes(32)), Key(SECRET)]))
        assert name in old.names(digest)
        assert old.open(name, data, digest, len(content)) == content
        assert name not in ValueSeal(lambda: "other", ring).names(digest)
        for wrong in (data[:-1], data + b"x", data[:-20] + bytes([data[-20] ^ 1]) + data[-19:], b"{}\n", b""):
            with pytest.raises(SealBrokenError):
                reader.open(name, wrong, digest, len(content))
        with pytest.raises(SealBrokenError):
            reader.open(name, data, "cd" * 32, len(content))
        with pytest.raises(SealBrokenError, match="packed in a way that this version does not know: 'aes-siv'"):
            reader.open(name, data.replace(b'"packed":"', b'"packed":"aes-siv","was":"', 1), digest, len(content))


def test_the_packed_file_of_a_value_is_one_that_zcat_reads(tmp_path):
    import gzip

    content = b'"%b"' % (b"word " * 20_000)
    name, data = ValueSeal(lambda: None, None, "gzip").seal("ab" * 32, content)
    assert name.endswith(".gz")
    assert gzip.decompress(data) == content
