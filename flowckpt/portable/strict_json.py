"""JSON from anybody: parsed to a tree that every store can hold and every reader can read again, or refused."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from flowckpt.codec import Json
from flowckpt.portable.limits import MOST_DEPTH

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class MalformedError(Exception):
    """Something in a file is not as it must be; its text says what. The reader adds where, and refuses the file."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise MalformedError(f"the key {next(key for key in keys if keys.count(key) > 1)!r:.60} stands there twice")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise MalformedError(f"the number {text:.40} is too large")
    return value


def _no_constant(text: str) -> Any:
    raise MalformedError(f"{text} is no JSON")


_decode = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_constant).decode


def strict_json(text: bytes) -> Json:
    """Parse JSON: UTF-8, no key twice, no NaN, no number beyond what a float holds, not too deep.

    Args:
        text: the text, of bounded length.

    Raises:
        MalformedError: it is none.
    """
    try:
        tree = _decode(text.decode())
        if _SURROGATE.search(text):
            json.dumps(tree, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise MalformedError(f"byte {error.start} is not UTF-8") from None
    except UnicodeEncodeError:
        raise MalformedError("a text in it has half a surrogate pair") from None
    except RecursionError:
        raise MalformedError(f"it is nested more than {MOST_DEPTH} deep") from None
    except ValueError as error:
        raise MalformedError(f"it is no JSON: {error}"[:200]) from None
    if text.count(b"[") + text.count(b"{") > MOST_DEPTH:
        _check_depth(tree)
    return tree


def _check_depth(tree: Json) -> None:
    level = [tree]
    for _ in range(MOST_DEPTH + 1):
        inner: list[Any] = []
        for each in level:
            if type(each) is dict:
                inner.extend(each.values())
            elif type(each) is list:
                inner.extend(each)
        level = [each for each in inner if type(each) in (dict, list)]
        if not level:
            return
    raise MalformedError(f"it is nested more than {MOST_DEPTH} deep")
