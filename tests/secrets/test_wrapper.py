"""The wrapper around a secret value: it is used, and never shown."""

from __future__ import annotations

import copy
import json
import pickle
import traceback
from typing import Annotated, Any, Final

import pytest

from flowckpt import Secret
from flowckpt.core import codec
from flowckpt.core.system.secret import MARK, NOT_SECRET, is_optional, secret_type
from flowckpt.errors import EncodingError, SecretMissingError


def test_it_shows_itself_nowhere_and_gives_its_value_to_whoever_asks():
    secret = Secret("hunter2")
    texts = [repr(secret), str(secret), f"{secret}", f"{secret!r:>30}", f"{secret:>30}", "%s %r" % (secret, secret)]  # noqa: UP031
    assert not [text for text in texts if "hunter2" in text]
    assert repr([secret]) == "[Secret(hidden)]"
    assert secret.reveal() == "hunter2"


def test_a_traceback_with_its_locals_does_not_show_it():
    token = Secret("hunter2")
    try:
        raise ValueError(f"bad token {token}")
    except ValueError as error:
        shown = traceback.TracebackException.from_exception(error, capture_locals=True)
    assert "hunter2" not in "".join(shown.format()).replace('Secret("hunter2")', "")
    assert token.reveal() == "hunter2"


def test_it_cannot_be_written_by_accident():
    with pytest.raises(TypeError):
        json.dumps(Secret("hunter2"))
    with pytest.raises(EncodingError, match="is a secret, and secrets are never recorded") as caught:
        codec.encode({"login": [Secret("hunter2")]}, place="fetch: output")
    assert caught.value.place == "fetch: output.login[0]"
    assert "hunter2" not in str(caught.value)


def test_secrets_are_equal_where_their_values_are():
    assert Secret("a") == Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2


def test_a_secret_of_a_secret_is_the_secret():
    assert Secret(Secret("a")).reveal() == "a"


def test_it_reaches_another_process_with_its_value():
    secret = Secret("hunter2")
    assert pickle.loads(pickle.dumps(secret)) == secret
    assert copy.copy(secret) is copy.deepcopy(secret) is secret


def test_one_from_a_record_says_that_its_value_must_be_given_again():
    recorded = codec.decode({"token": dict(MARK)})["token"]
    assert repr(recorded) == "Secret(hidden)"
    assert recorded.is_absent
    with pytest.raises(SecretMissingError, match="not recorded"):
        recorded.reveal()
    assert codec.encode(recorded) == MARK


@pytest.mark.parametrize(
    ("annotation", "inner", "takes_none"),
    [
        (Secret, Any, False),
        (Secret[str], str, False),
        (Secret[str] | None, str, True),
        (Annotated[Secret[int], "the pin"], int, False),
        (Annotated[Secret[int] | None, "the pin"], int, True),
        (Final[Secret[bytes]], bytes, False),
        (Secret[dict[str, str]], dict[str, str], False),
        (str, NOT_SECRET, False),
        (list[Secret[str]], NOT_SECRET, False),
        (str | None, NOT_SECRET, True),
        (Any, NOT_SECRET, False),
    ],
    ids=lambda value: "none" if value is NOT_SECRET else str(value),
)
def test_an_annotation_says_what_a_secret_holds(annotation, inner, takes_none):
    assert secret_type(annotation) == inner
    assert is_optional(annotation) is takes_none
