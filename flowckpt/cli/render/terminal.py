"""Standard output and standard error of the command.

Results go to standard output, everything else to standard error. If the result is a document for a program
(`--json`, `--events`), standard output is reserved for it: for user code and its child processes it is replaced by
standard error, so their prints can never get into the document.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import reprlib
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import PurePath
from typing import Any

_STDOUT, _STDERR = 1, 2


class OutputClosedError(Exception):
    """The reader of standard output is gone, as after `head`."""


class OutputFailedError(Exception):
    """Standard output cannot be written, for example on a full disk."""


class _Place:
    """The state of the descriptor for results."""

    descriptor = _STDOUT
    is_closed = False
    is_missing = False
    is_written = False


def open_missing_descriptors() -> None:
    """Open the null device for each closed descriptor 0, 1 or 2.

    Otherwise the next opened file, possibly a run's record, would get the number, and prints would go into it. A result
    that has nowhere to go is still a failure.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            _Place.is_missing |= descriptor == _STDOUT


def reserve_for_document() -> None:
    """Reserve standard output for one document: from here on, prints go to standard error."""
    if _Place.descriptor != _STDOUT:
        return
    if sys.stdout is not None:
        sys.stdout.flush()
    _Place.descriptor = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    with contextlib.suppress(AttributeError):  # closed, or replaced by an object without this method
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def write(text: str) -> None:
    """Write a result to standard output completely, after flushing earlier prints.

    Args:
        text: the text, with its line feeds.

    Raises:
        OutputClosedError: the reader is gone.
        OutputFailedError: it cannot be written.
    """
    encoding = "utf-8"
    if sys.stdout is not None and _Place.descriptor == _STDOUT:
        encoding = sys.stdout.encoding or encoding
        with _convert_failures():
            sys.stdout.flush()
    write_bytes(text.encode(encoding, "backslashreplace"))


def write_lines(lines: Iterable[str]) -> None:
    """Write lines of a result to standard output; see `write`."""
    write("".join(f"{line}\n" for line in lines))


def write_bytes(data: bytes) -> None:
    """Write bytes to standard output completely and at once. Earlier prints must have been flushed.

    Raises:
        OutputClosedError: the reader is gone.
        OutputFailedError: it cannot be written.
    """
    if _Place.is_missing:
        raise OutputFailedError("it is closed")
    _Place.is_written = True
    with _convert_failures():
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[os.write(_Place.descriptor, remaining) :]


@contextlib.contextmanager
def _convert_failures() -> Iterator[None]:
    """Raise the errors of this module for a failed write."""
    try:
        yield
    except BrokenPipeError:
        abandon_stdout()
        raise OutputClosedError from None
    except OSError as error:
        raise OutputFailedError(error.strerror or str(error)) from error


def reset_written() -> None:
    """Reset the state for a new command."""
    _Place.is_written = False


def has_written() -> bool:
    """Return whether a result was written to standard output."""
    return _Place.is_written


def write_if_read(text: str) -> None:
    """Write like `write`, but continue silently without a reader; for the progress of a run."""
    if not _Place.is_closed:
        with contextlib.suppress(OutputClosedError):
            write(text)


def abandon_stdout() -> None:
    """Abandon standard output, so that its failure is not reported again at exit."""
    _Place.is_closed = True
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, _STDOUT)
    os.close(null)


def say(text: str) -> None:
    """Write a line to standard error; a message that cannot be shown is dropped."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def say_with_time(line: str) -> None:
    """Write a line to standard error after the time of day."""
    say(f"{datetime.now():%H:%M:%S} {line}")  # noqa: DTZ005 - the reader's wall clock


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return os.isatty(_Place.descriptor)


def is_person_there() -> bool:
    """Return whether a person at a terminal can be prompted."""
    try:
        return sys.stdin is not None and sys.stdin.isatty() and is_error_terminal()
    except ValueError:  # it was closed
        return False


def is_error_terminal() -> bool:
    """Return whether standard error is a terminal."""
    return os.isatty(_STDERR)


# Escaping of users' text: characters that move the cursor, change colours or reorder a line are written as escapes.
#
# Names of steps, messages of errors and outputs come from users and from files. A terminal would interpret an ESC in them.


_CONTROLS = "\x00-\x1f"
_OTHERS = (
    "\x7f-\x9f"  # DEL and the C1 controls: a single one starts a command on some terminals
    "\u00ad\u061c\u180e\u200b\u200e\u200f"  # invisible, or changing the text direction
    "\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
    "\ud800-\udfff"  # surrogates, as in undecodable file names: they cannot be encoded
)
_UNSAFE, _UNSAFE_IN_JSON = f"[{_CONTROLS}{_OTHERS}]", f"[{_OTHERS}]"


def escape(text: str) -> str:
    r"""Return text on one line with control characters escaped: `\x1b[2J`, `\n`, `\u202e`."""
    return text if text.isprintable() else re.sub(_UNSAFE, _escape_match, text)


def escape_lines(text: str) -> str:
    """Return text like `escape`, but with its line feeds kept; for tracebacks."""
    return "\n".join(escape(line.replace("\t", "    ")) for line in text.split("\n"))


def shorten(text: str, most: int) -> str:
    """Return text like `escape`, shortened in the middle if it is longer than `most`."""
    if len(text) > most:
        tail = most // 3
        text = f"{text[: most - tail - 1]}…{text[-tail:]}"
    return escape(text)


class _Writer(reprlib.Repr):
    """Also writes integers of more digits than Python converts to text, and keeps the order of a dict."""

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        if x and level <= 0:
            return f"{{{self.fillvalue}}}"
        items = list(islice(x.items(), self.maxdict))
        pieces = [f"{self.repr1(key, level - 1)}: {self.repr1(value, level - 1)}" for key, value in items]
        return f"{{{', '.join(pieces + [self.fillvalue] * (len(x) > len(items)))}}}"

    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:
            return f"<an integer of {x.bit_length()} bits>"

    def repr_instance(self, x: Any, level: int) -> str:
        if not isinstance(x, PurePath):
            return super().repr_instance(x, level)
        text = str(x)
        return text if text.isprintable() and " " not in text else repr(text)


def short_value(value: Any, most: int = 200) -> str:
    """Return a user's value as text of limited length on one line."""
    writer = _Writer()
    writer.maxstring = writer.maxother = most
    writer.maxlist = writer.maxtuple = writer.maxset = writer.maxfrozenset = writer.maxdict = 10
    writer.maxlevel = 4
    return shorten(writer.repr(value), most)


def json_text(document: Any, *, indent: int | None = None) -> str:
    """Return a document as JSON text that is safe on a terminal and has the same value for every JSON reader.

    Args:
        document: a JSON tree.
        indent: spaces per level; by default, all is on one line.
    """
    return escape_json(json.dumps(document, ensure_ascii=False, indent=indent))


def write_document(document: Any) -> None:
    """Write one JSON document to standard output; see `write`."""
    write(f"{json_text(document, indent=2)}\n")


def escape_json(text: str) -> str:
    r"""Replace control characters in JSON text by `\uXXXX`; they can only occur within strings."""
    return text if text.isascii() and "\x7f" not in text else re.sub(_UNSAFE_IN_JSON, _escape_json_match, text)


_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def _escape_match(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    if code < 0x100:
        return _SHORT.get(character, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escape_json_match(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code < 0x10000 else json.dumps(match[0])[1:-1]
