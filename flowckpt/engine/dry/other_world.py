"""Another world for a workflow's body: the values that it reads itself, and not in a step, differ from the real ones.

A value that is the same in two replays of one minute may differ in a resume of tomorrow. Driven once more in this world, a
workflow that passes such a value on does something else.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

_LATER_SECONDS = 100_000
_is_other: ContextVar[bool] = ContextVar("_is_other", default=False)
"""Whether the code that runs here is the workflow's body, and not an ephemeral step."""


_HELPERS = frozenset({__name__, "os", "_collections_abc", "collections.abc", "pathlib", "pathlib._local", "glob"})
"""Modules that read on behalf of their caller."""


def _is_read_by_body() -> bool:
    """Return whether the program reads, and not a library, which may well do without what it finds."""
    if not _is_other.get():
        return False
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__") in _HELPERS and frame.f_back is not None:
        frame = frame.f_back
    name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return name not in sys.stdlib_module_names and "site-packages" not in frame.f_code.co_filename


class _OtherEnvironment(type(os.environ)):  # type: ignore[misc]  # a class that typeshed makes generic and Python does not
    def __getitem__(self, name: str) -> str:
        if not _is_read_by_body():
            value: str = super().__getitem__(name)
            return value
        try:
            value = super().__getitem__(name)
        except KeyError:
            value = ""
        return str(int(value) + 1) if value.isdigit() else f"{value}~"


def _fewer(names: list[Any]) -> list[Any]:
    return names[:-1] if _is_read_by_body() else names


class _FewerEntries:
    """The entries of a directory, without one of them."""

    def __init__(self, entries: Any) -> None:
        self._entries = entries
        self._found = iter(_fewer([*entries]))

    def __iter__(self) -> Iterator[Any]:
        return self._found

    def __next__(self) -> Any:
        return next(self._found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._entries.close()

    def close(self) -> None:
        """Close the directory."""
        self._entries.close()


@contextmanager
def other_world() -> Iterator[None]:
    """Read other environment variables, directories and times for the block, wherever `in_body` says so."""
    kept = {name: getattr(time, name) for name in ("time", "time_ns")}
    listdir, scandir, environment = os.listdir, os.scandir, type(os.environ)

    def later(read: Callable[[], Any], by: int) -> Callable[[], Any]:
        return lambda: read() + by if _is_read_by_body() else read()

    try:
        os.environ.__class__ = _OtherEnvironment
        os.listdir = lambda *args: _fewer(listdir(*args))
        os.scandir = lambda *args: _FewerEntries(scandir(*args))  # type: ignore[assignment]
        time.time = later(kept["time"], _LATER_SECONDS)
        time.time_ns = later(kept["time_ns"], _LATER_SECONDS * 10**9)
        with in_body(True):
            yield
    finally:
        os.environ.__class__ = environment
        os.listdir, os.scandir = listdir, scandir
        time.time, time.time_ns = kept["time"], kept["time_ns"]


@contextmanager
def in_body(is_body: bool) -> Iterator[None]:
    """Say whether the code in the block is the workflow's body, or a step that runs at each replay."""
    token = _is_other.set(is_body)
    try:
        yield
    finally:
        _is_other.reset(token)
