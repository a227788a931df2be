"""Text of users on a terminal: what could move the cursor, change colours or reorder a line is written as an escape.

Names of steps, messages of errors and outputs come from users and from files. A terminal would obey an ESC in them.
"""

from __future__ import annotations

import json
import re
import reprlib
from typing import Any

_CONTROLS = "\x00-\x1f"
_OTHERS = (
    "\x7f-\x9f"  # DEL and the C1 controls: one of them alone begins a command on some terminals
    "\u00ad\u061c\u180e\u200b\u200e\u200f"  # invisible, or turning the direction of writing
    "\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
    "\ud800-\udfff"  # half characters, as in undecodable file names: no terminal can show them
)
_UNSAFE = re.compile(f"[{_CONTROLS}{_OTHERS}]")
_UNSAFE_IN_JSON = re.compile(f"[{_OTHERS}]")


def escaped(text: str) -> str:
    r"""Return text on one line that a terminal shows and never obeys: `\x1b[2J`, `\n`, `\u202e`.

    Args:
        text: any text.
    """
    return text if text.isprintable() else _UNSAFE.sub(_escape, text)


def escaped_lines(text: str) -> str:
    """Return text like `escaped`, but with its line feeds kept; for tracebacks.

    Args:
        text: any text.
    """
    return "\n".join(escaped(line.replace("\t", "    ")) for line in text.split("\n"))


def shortened(text: str, most: int) -> str:
    """Return text like `escaped`, cut in the middle where it is longer than `most`.

    Args:
        text: any text.
        most: how many characters there may be.
    """
    if len(text) > most:
        tail = most // 3
        text = f"{text[: most - tail - 1]}…{text[-tail:]}"
    return escaped(text)


def short_value(value: Any, most: int = 200) -> str:
    """Write a value of the user's for people, on one line and not for ever.

    Args:
        value: any value.
        most: how many characters there may be.
    """
    writer = reprlib.Repr()
    writer.maxstring = writer.maxother = most
    writer.maxlist = writer.maxtuple = writer.maxset = writer.maxfrozenset = writer.maxdict = 10
    writer.maxlevel = 4
    return shortened(writer.repr(value), most)


def json_text(document: Any, *, indent: int | None = None) -> str:
    """Return JSON text of one document, safe to show: the same value to every JSON reader.

    Args:
        document: a JSON tree.
        indent: spaces a level; all on one line where not given.
    """
    return escaped_json(json.dumps(document, ensure_ascii=False, indent=indent))


def escaped_json(text: str) -> str:
    r"""Write what a terminal would obey in JSON text as `\uXXXX`; it can only stand within strings.

    Args:
        text: JSON text.
    """
    return text if text.isascii() and "\x7f" not in text else _UNSAFE_IN_JSON.sub(_escape_json, text)


_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    if code < 0x100:
        return _SHORT.get(character, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escape_json(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code < 0x10000 else json.dumps(match[0])[1:-1]
