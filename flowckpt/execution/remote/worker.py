"""One try of a step in a worker: the parcel unpack_task, the function called, the outcome pack_task as plain data.

What comes back is never an object of the worker's: an output is the tree that is recorded, and an exception is what is
recorded of it. So nothing is lost because it cannot be sent, and nothing is built here that a worker chose.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any

import attrs

from flowckpt.core import codec
from flowckpt.core.codec.types import return_annotation
from flowckpt.core.records import StepError
from flowckpt.core.system.declared import type_name
from flowckpt.execution.current_step import set_call
from flowckpt.execution.errors import asked_delay, recorded_error, text_of
from flowckpt.execution.executors.base import way_up
from flowckpt.execution.remote.channel import read_plain
from flowckpt.execution.remote.task import name_in_engine, unpack_task
from flowckpt.execution.thread import AbandonedStepError

DONE, FAILED, UNREADABLE = "done", "failed", "unreadable"


def work(parcel: bytes) -> bytes:
    """Do one try of a step and return what came of it."""
    path = ""
    try:
        now, desk, call = unpack_task(parcel, way_up.get())
        path = now.path
        function, args, kwargs = call()
    except AbandonedStepError:
        raise
    except BaseException as error:
        return pickle.dumps((UNREADABLE, (type_name(type(error)), text_of(error)), False, {}, {}))
    token = set_call(now)
    try:
        with _entered(desk.carried):
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                value = asyncio.run(_awaited(value))
        tree = codec.encode(value, return_annotation(function), place=f"{path}: output")
    except AbandonedStepError:
        desk.close(waits=False)
        raise
    except BaseException as error:
        desk.close()
        failure = _as_in_engine(recorded_error(error, path=path, tries=now.tries, is_whole=True))
        content = attrs.asdict(failure), isinstance(error, Exception), asked_delay(error, datetime.now(UTC))
        return pickle.dumps((FAILED, content, desk.is_unheard, desk.figures, desk.published))
    finally:
        token.var.reset(token)
    desk.close()
    return pickle.dumps((DONE, tree, desk.is_unheard, desk.figures, desk.published))


def opened(answer: Any) -> tuple[str, Any, bool, Mapping[str, Any], Mapping[str, Any]]:
    """Return what `work` returned: kind, content, whether progress had no way to the engine, figures, and what was published.

    The content is a tree, or a `StepError`, whether it was an `Exception`, and the seconds that it asks to wait.

    Args:
        answer: the bytes.

    Raises:
        ValueError: it is none of these.
    """
    kind, content, is_unheard, figures, published = read_plain(answer)
    if not isinstance(figures, dict) or not all(isinstance(name, str) for name in figures):
        raise ValueError(f"a worker answered with the figures {figures!r:.80}")
    published = dict(published)
    if kind == FAILED:
        fields, is_exception, delay = content
        fields["bases"], fields["causes"] = tuple(fields["bases"]), tuple(fields["causes"])
        return kind, (StepError(**fields), is_exception, float(delay)), bool(is_unheard), figures, published
    if kind not in (DONE, UNREADABLE):
        raise ValueError(f"a worker answered with {kind!r:.80}")
    return kind, content, bool(is_unheard), figures, published


def _entered(parcel: bytes) -> AbstractContextManager[object]:
    """Return what is to be entered around the function; nothing if it cannot be read here."""
    if parcel:
        with suppress(Exception):
            found: AbstractContextManager[object] = pickle.loads(parcel)  # noqa: S301 - the engine's own, as the function
            return found
    return nullcontext()


async def _awaited(value: Any) -> Any:
    return await value


def _as_in_engine(error: StepError) -> StepError:
    """Name the classes of the script as they are named where it was run."""
    return attrs.evolve(error, type=name_in_engine(error.type), bases=tuple(map(name_in_engine, error.bases)))
