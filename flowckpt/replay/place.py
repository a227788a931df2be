"""Where a generator stands, for records and for people."""

from __future__ import annotations

import functools
from pathlib import PurePath
from types import CodeType, FrameType, GeneratorType
from typing import Any

from flowckpt.dsl import Step

_STEP_ITER: CodeType = Step.__iter__.__code__


def where_of(generator: Any, *, full: bool = False) -> str:
    """Return `file:line` of the `yield` that a generator stands at, inside generators it delegates to.

    The record gets the bare file name: the same code in another directory is the same code.

    Args:
        generator: the generator; where it has ended, an empty text is returned.
        full: with the file's directory.
    """
    found = generator
    while type(inner := getattr(found, "gi_yieldfrom", None)) is GeneratorType and inner.gi_code is not _STEP_ITER:
        found = inner
    frame: FrameType | None = getattr(found, "gi_frame", None)
    if frame is None:
        return ""
    file = frame.f_code.co_filename
    return f"{file if full else _base_name(file)}:{frame.f_lineno}"


@functools.lru_cache(maxsize=256)
def _base_name(file: str) -> str:
    return PurePath(file).name
