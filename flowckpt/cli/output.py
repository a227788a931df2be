"""Standard output and standard error of the command.

Results go to standard output, everything else to standard error. Where the result is a document for a program
(`--json`, `--events`), standard output is kept for it: user code and its child processes find standard error in its
place, so their prints can never get into the document.
"""

from __future__ import annotations

import contextlib
import os
import sys

_STDOUT, _STDERR = 1, 2


class OutputClosedError(Exception):
    """Whoever read standard output has gone away, as `head` does."""


class OutputFailedError(Exception):
    """Standard output cannot be written, as on a full disk."""


class _Place:
    """Which descriptor results are written to."""

    descriptor = _STDOUT
    is_closed = False


def open_missing_descriptors() -> None:
    """Put the null device where descriptor 0, 1 or 2 is closed.

    Otherwise the next file that is opened, a run's own record perhaps, would get the number, and prints would go there.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def keep_for_document() -> None:
    """Keep standard output for one document: from here on, prints go to standard error."""
    if _Place.descriptor != _STDOUT:
        return
    if sys.stdout is not None:
        sys.stdout.flush()
    _Place.descriptor = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    with contextlib.suppress(AttributeError):  # closed, or replaced by something simpler
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def write(text: str) -> None:
    """Write a result to standard output, whole, now.

    Args:
        text: what to write, with its line feeds.

    Raises:
        OutputClosedError: nobody reads it.
        OutputFailedError: it cannot be written.
    """
    encoding = "utf-8"
    try:
        if sys.stdout is not None and _Place.descriptor == _STDOUT:
            encoding = sys.stdout.encoding or encoding
            sys.stdout.flush()
    except BrokenPipeError:
        abandon()
        raise OutputClosedError from None
    except OSError as error:
        raise OutputFailedError(error.strerror or str(error)) from error
    write_bytes(text.encode(encoding, "backslashreplace"))


def write_bytes(data: bytes) -> None:
    """Write bytes to standard output as they are, whole, now; what is printed otherwise has been flushed.

    Args:
        data: what to write.

    Raises:
        OutputClosedError: nobody reads it.
        OutputFailedError: it cannot be written.
    """
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(_Place.descriptor, left) :]
    except BrokenPipeError:
        abandon()
        raise OutputClosedError from None
    except OSError as error:
        raise OutputFailedError(error.strerror or str(error)) from error


def write_if_read(text: str) -> None:
    """Write like `write`, but go on without a word once nobody reads; for what a run tells on its way.

    Args:
        text: what to write.
    """
    if not _Place.is_closed:
        with contextlib.suppress(OutputClosedError):
            write(text)


def abandon() -> None:
    """Give standard output up, so that nothing complains about it when the program ends."""
    _Place.is_closed = True
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, _STDOUT)
    os.close(null)


def say(text: str) -> None:
    """Write a line to standard error; a message that nobody can read is dropped.

    Args:
        text: the line.
    """
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def is_terminal() -> bool:
    """Tell whether standard output is a terminal."""
    return _is_terminal(_Place.descriptor)


def is_error_terminal() -> bool:
    """Tell whether standard error is a terminal."""
    return _is_terminal(_STDERR)


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False
