"""The check of record contents, the same for every store: a store's own check verifies only digests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.codec.blob import Blob
from flowckpt.core.codec.checkpoints import export_document, result_document
from flowckpt.core.codec.results import as_view
from flowckpt.core.codec.wellformed import MalformedError, check_head, check_result
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointStorageError,
    DecodingError,
    EncodingError,
    FlowckptError,
    UnauthenticatedRecordError,
)
from flowckpt.stores.base import Ability, Finding, StoreBase
from flowckpt.stores.queries import DAMAGE

if TYPE_CHECKING:
    from flowckpt.core.records import CheckpointData, HistoryView

_ODD = "its digests match, but it holds content that flowckpt never writes"


async def check_content(store: StoreBase, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings of a store's own check, and those from reading each attempt of the intact runs.

    Args:
        store: the store; without the ability to read attempts, nothing more is read.
        findings: what its own check found.

    Raises:
        CheckpointStorageError: the medium failed.
    """
    checked: list[Finding] = []
    for finding in findings:
        run = finding.workflow_id
        checked.append(finding)
        if finding.severity != "ok" or not run or not store.has(Ability.ATTEMPTS):
            continue
        damaged, oddity = await _inspect_attempts(store, run)
        if damaged:
            checked[-1] = attrs.evolve(finding, severity="notice", detail=f"{finding.detail} in the current history")
            checked += [
                Finding(run, "corrupt", f"attempt {number}, outside the current history: {error}")
                for number, error in damaged
            ]
        elif oddity:
            checked[-1] = Finding(run, "corrupt", f"{_ODD}: {oddity}")
    return checked


async def find_content_error(store: StoreBase, workflow_id: str) -> CheckpointCorruptedError | None:
    """Return the error for an exception caused by the content of a record; None if the content is valid."""
    with suppress(Exception):  # the exception itself is raised then
        damaged, oddity = await _inspect_attempts(store, workflow_id)
        if not damaged and oddity:
            return CheckpointCorruptedError(workflow_id, location="its record", detail=f"{_ODD}: {oddity}")
    return None


async def find_damaged_attempts(store: StoreBase, workflow_id: str) -> list[tuple[int, Exception]]:
    """Return the attempts of a run that cannot be read completely, and why, including superseded attempts.

    Args:
        store: the store; without the ability to read attempts, the result is empty.
        workflow_id: the run.
    """
    return [(number, read) async for number, read in _read_attempts(store, workflow_id) if isinstance(read, Exception)]


async def _read_attempts(
    store: StoreBase, workflow_id: str
) -> AsyncGenerator[tuple[int, Sequence[CheckpointData] | Exception]]:
    """Return each attempt of a run with its checkpoints, or the error of its damage."""
    for number in await store.attempts(workflow_id) if store.has(Ability.ATTEMPTS) else ():
        try:
            read = await store.read_attempt(workflow_id, number)
            for data in read:
                check_values(data.held_values)
            if read:
                check_values(result.held_output for result in read[-1].step_results)
        except UnauthenticatedRecordError:  # older than the key: the current history holds its trusted part
            continue
        except DAMAGE as error:
            yield number, error
        else:
            yield number, read


def check_values(values: Iterable[Any]) -> None:
    """Read the large values among the given values.

    Raises:
        CheckpointCorruptedError: one is damaged or missing.
    """
    for held in values:
        if isinstance(held, Blob):
            held.content()


async def _inspect_attempts(store: StoreBase, workflow_id: str) -> tuple[list[tuple[int, Exception]], str]:
    """Read every attempt of a run.

    Returns:
        The damaged attempts, and a description of content that flowckpt never writes (empty if there is none).
    """
    damaged: list[tuple[int, Exception]] = []
    checked: HistoryView | None = None
    oddity = ""
    try:
        await store.describe_run(workflow_id)
        # Held, so that the store does not parse the run for each attempt.
        _latest = await store.load_latest(workflow_id)
        await store.list_checkpoints(workflow_id)
        async for number, read in _read_attempts(store, workflow_id):
            if isinstance(read, Exception):
                damaged.append((number, read))
            else:
                for data in read if not damaged else ():
                    checked = _check_checkpoint(data, checked)
    except (CheckpointCorruptedError, DecodingError, EncodingError) as error:
        oddity = error.message
    except (CheckpointStorageError, OSError, MemoryError):
        raise
    except FlowckptError:
        pass  # this says nothing about the content
    except Exception as error:  # it can be anything
        oddity = str(error) if isinstance(error, MalformedError) else f"{type(error).__name__}: {error}"
    return damaged, oddity


def _check_checkpoint(data: CheckpointData, checked: HistoryView | None) -> HistoryView:
    """Raise an exception of any class if a checkpoint holds what flowckpt never writes.

    Args:
        data: the checkpoint.
        checked: the results of the checkpoint before it, which were checked; None for the first one.

    Returns:
        Its results.
    """
    document = export_document(attrs.evolve(data, step_results=()))
    check_head({name: value for name, value in document.items() if name != "step_results"})
    if type(document["inputs"]) is not dict:
        raise MalformedError("its inputs are not an object")
    view = as_view(data.step_results)
    start = 0 if checked is None else view.shared_length(checked)
    for result in view.history.results[start : view.length]:
        check_result(result_document(result))
    return view
