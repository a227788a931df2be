"""Finding secret values in texts and trees, however somebody has written them."""

from __future__ import annotations

import json
import logging
import shlex
from base64 import b64encode, urlsafe_b64encode
from decimal import Decimal
from hashlib import sha256
from urllib.parse import quote, quote_plus

import attrs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flowckpt import Secret
from flowckpt.core.identity.secrets import KnownSecrets

SPELLINGS = {
    "plain": str,
    "repr": lambda text: repr(text)[1:-1],
    "repr of bytes": lambda text: repr(text.encode())[2:-1],
    "json": lambda text: json.dumps(text)[1:-1],
    "json in Unicode": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "json of a repr": lambda text: json.dumps(repr(text))[2:-2],
    "url": lambda text: quote(text, safe=""),
    "form": lambda text: quote_plus(text, safe=""),
    "shell": lambda text: shlex.quote(text)[1:-1] if shlex.quote(text) != text else text,
    "hex": lambda text: text.encode().hex(),
    "base64": lambda text: b64encode(text.encode()).decode(),
    "url-safe base64": lambda text: urlsafe_b64encode(text.encode()).decode(),
    "sha256": lambda text: sha256(text.encode()).hexdigest(),
    "hex in capitals": lambda text: text.encode().hex().upper(),
    "sha256 in capitals": lambda text: sha256(text.encode()).hexdigest().upper(),
}
values = st.text(st.characters(exclude_categories=["Cs"]), min_size=4, max_size=40)
around = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)


@pytest.mark.parametrize("spelling", SPELLINGS)
@settings(max_examples=40, deadline=None)
@given(value=values, before=around, after=around)
def test_no_spelling_of_a_secret_is_left_in_a_text(spelling, value, before, after):
    written = SPELLINGS[spelling](value)
    assume(written not in before + after and "hidden" not in value and len(set(value)) > 2)
    text = KnownSecrets([Secret(value)]).redact(before + written + after)
    assert written not in text.replace("(hidden)", "\0")


@given(user=st.text("abcdefgh", max_size=7), value=st.text(min_size=8).filter(lambda text: text.isascii()))
def test_base64_of_something_longer_gives_nothing_of_the_secret_away_but_its_edges(user, value):
    coded = b64encode(f"{user}:{value}".encode()).decode()
    shown = KnownSecrets([value]).redact(coded)
    begins = (len(user) + 1) * 4 // 3 + 2
    assert "(hidden)" in shown
    assert coded[begins : begins + 8] not in shown


@given(st.text("abc xyz", max_size=50))
def test_a_text_without_secrets_stays_as_it_is(text):
    assert KnownSecrets().redact(text) == text
    assert KnownSecrets(["hunter2"]).redact(text) == text


def test_the_beginning_and_the_end_of_a_long_secret_are_found_where_the_rest_was_cut_off():
    known = KnownSecrets(["abcdefghijklmnopqrstuvwxyz"])
    assert known.redact("got 'abcdefghijklmno…") == "got '(hidden)…"
    assert known.redact("…mnopqrstuvwxyz'") == "…(hidden)'"


@pytest.mark.parametrize("length", range(1, 12))
def test_a_secret_that_a_cut_divides_is_removed_except_for_three_characters(length):
    known, secret = KnownSecrets(["hunter2-abcd"]), "hunter2-abcd"
    cut = "\n… 5,000 bytes left out …\n"
    head, tail = secret[:length], secret[-length:]
    shown = "(hidden)" if length > 3 else None
    assert known.redact(f"xx {head}{cut}{tail} yy") == f"xx {shown or head}{cut}{shown or tail} yy"
    assert known.redact(f"hunt hunter {head}…") == f"hunt hunter {shown or head}…"
    assert known.redact(f"{head} …") == f"{head} …"


def test_a_short_secret_beside_a_cut_is_no_part_of_another_word():
    assert KnownSecrets(["123"]).redact("loading…\n1234 rows") == "loading…\n1234 rows"
    assert KnownSecrets([5]).redact("waited 15…") == "waited 15…"


def test_each_line_of_a_key_is_a_secret():
    known = KnownSecrets(["-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\n"])
    assert known.redact("read MIIEvQIBADANBg") == "read (hidden)"


def test_short_secrets_go_where_they_stand_as_a_word():
    assert KnownSecrets(["abc"]).redact("abc, cabcab, (abc)") == "(hidden), cabcab, ((hidden))"
    assert KnownSecrets([1234]).redact("1234 12345 1234. 1234.5") == "(hidden) 12345 (hidden). 1234.5"


@attrs.frozen
class Login:
    user: str
    password: str = attrs.field(repr=False)


@pytest.mark.parametrize(
    "value",
    [
        "hunter2-hunter2",
        b"hunter2-hunter2",
        {"a": [{"b": "hunter2-hunter2"}]},
        Login("somebody", "hunter2-hunter2"),
        ("x", Secret("hunter2-hunter2")),
    ],
    ids=["text", "bytes", "mapping", "object", "secret"],
)
def test_everything_in_a_secret_is_secret(value):
    assert KnownSecrets([Secret(value)]).redact("it is hunter2-hunter2!") == "it is (hidden)!"


def test_a_number_in_another_form_is_found():
    assert KnownSecrets([Decimal("123.4567")]).redact("123.4567") == "(hidden)"


@pytest.mark.parametrize(
    ("tree", "place"),
    [
        ("a long-secret b", "it"),
        ({"rows": [{"token": "long-secret"}]}, "it.rows[0].token"),
        ({"a b": {"long-secret": 1}}, "a key of it['a b']"),
        ({"$tuple": ["x", {"$bytes": b64encode(b"a long-secret b").decode()}]}, "it[1]"),
        ("pass", "it"),
        (1234567, "it"),
        ("a password", ""),
        ("3", ""),
        (12, ""),
        ([True, None, 1.5, {"rows": "2"}], ""),
    ],
    ids=[
        "text",
        "nested",
        "key",
        "bytes",
        "short and whole",
        "number",
        "short inside",
        "shorter",
        "few digits",
        "else",
    ],
)
def test_an_output_that_holds_a_secret_is_found_with_its_place(tree, place):
    assert KnownSecrets(["long-secret", "pass", "3", 1234567, 12]).place_in(tree, "it") == place


def test_short_parts_of_a_secret_of_several_parts_are_none():
    known = KnownSecrets([{"country": "ch", "retries": 3, "is_on": True, "pin": 4711}])
    assert known.redact("3 retries in ch with 4711") == "3 retries in ch with (hidden)"


class Connection:
    def __init__(self) -> None:
        self.password = "hunter2-hunter2"
        self.me = self
        self.others = {index: [self, logging, Connection, print] for index in range(9)}


def test_an_object_that_leads_everywhere_is_looked_into_once():
    assert KnownSecrets([Connection()]).redact("it is hunter2-hunter2!") == "it is (hidden)!"


def test_it_tells_nothing_of_itself():
    assert "hunter2" not in repr(KnownSecrets(["hunter2"]))


def test_a_secret_without_a_value_is_nothing_to_look_for():
    known = KnownSecrets(["", None, b"", True, {}, []])
    assert not known.is_any
    assert known.redact("True") == "True"
