"""A run as the lines of a file: pure, checkpoints in and bytes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any

from flowckpt.checkpoint import CheckpointData, HistoryView
from flowckpt.codec import Json
from flowckpt.codec.blob import Blob
from flowckpt.codec.checkpoints import CARRIED, encode_head
from flowckpt.codec.results import as_view
from flowckpt.errors import CheckpointCorruptedError, ForeignRecordError
from flowckpt.portable.lines import (
    Counts,
    attempt_line,
    blob_line,
    checkpoint_line,
    end_line,
    header_line,
    result_line,
)


class RunWriter:
    """Turns the checkpoints of a run into lines.

    Args:
        workflow_id: the run.

    Attributes:
        attempts: attempts so far.
        checkpoints: checkpoints so far.
        results: results so far.
        blobs: large values so far.
        identity: SHA-256 over the lines so far, but those of large values, which others name by their digest.
    """

    def __init__(self, workflow_id: str) -> None:
        self.attempts = self.checkpoints = self.results = self.blobs = 0
        self.identity: Any = sha256()
        self._workflow_id = workflow_id
        self._attempt = 0
        self._held: HistoryView | None = None
        self._carried: dict[str, Json] = {}
        self._written: set[str] = set()

    @property
    def counts(self) -> Counts:
        """How much there is so far."""
        return Counts(self.attempts, self.checkpoints, self.results, self.blobs)

    def lines(self, checkpoints: Iterable[CheckpointData], *, is_whole: bool = True) -> Iterator[bytes]:
        """Return the lines of checkpoints, attempt by attempt and the oldest first.

        Args:
            checkpoints: the checkpoints.
            is_whole: with the large values; without them, nothing of those is read.

        Raises:
            ForeignRecordError: the history of a checkpoint does not continue the one before it.
            CheckpointCorruptedError: a large value is not what its record says.
        """
        for data in checkpoints:
            view = as_view(data.step_results)
            kept = 0
            if data.attempt != self._attempt:
                kept = 0 if self._held is None else self._held.shared_length(view)
                self._attempt, self._carried = data.attempt, {}
                self.attempts += 1
                yield self._said(attempt_line(data.attempt, kept))
            else:
                assert self._held is not None, "an attempt has begun"
                kept = len(self._held)
                if not view.continues(self._held):
                    raise ForeignRecordError(
                        f"checkpoint {data.sequence} of run {self._workflow_id!r} does not continue the one before it",
                        workflow_id=self._workflow_id,
                        found=f"{kept} results before it, {len(view)} in it",
                    )
            head, named = encode_head(data)
            blobs = dict(named)
            for index in range(kept, len(view)):
                blobs.update(view.history.blobs.get(index, {}))
            for blob in blobs.values():
                if blob.digest not in self._written:
                    self._written.add(blob.digest)
                    self.blobs += 1
                    if is_whole:
                        yield self._blob_line(blob)
            for encoded in view.history.encoded_between(kept, len(view)):
                self.results += 1
                yield self._said(result_line(encoded))
            for name in CARRIED:
                if name in self._carried and head[name] == self._carried[name]:
                    del head[name]
                else:
                    self._carried[name] = head[name]
            self.checkpoints += 1
            self._held = view
            yield self._said(checkpoint_line(head, len(view), view.chain.hex()))

    def _said(self, line: bytes) -> bytes:
        self.identity.update(line)
        return line

    def _blob_line(self, blob: Blob) -> bytes:
        content = blob.content()
        if len(content) != blob.size or sha256(content).hexdigest() != blob.digest or b"\n" in content:
            raise CheckpointCorruptedError(
                self._workflow_id, location=f"large value {blob.digest}", detail="it does not match its digest"
            )
        return blob_line(blob.digest, content)


def run_lines(workflow_id: str, checkpoints: Sequence[CheckpointData]) -> Iterator[bytes]:
    """Return all lines of an exported run.

    Args:
        workflow_id: the run.
        checkpoints: all its checkpoints, attempt by attempt and the oldest first; at least one.

    Raises:
        ForeignRecordError: the history of a checkpoint does not continue the one before it.
        CheckpointCorruptedError: a large value is not what its record says.
    """
    latest = checkpoints[-1]
    writer, whole = RunWriter(workflow_id), sha256()
    target = {key: text for key, text in dict(latest.metadata.get("target", {})).items() if isinstance(text, str)}
    first = header_line(workflow_id, latest.workflow_name, latest.status.value, target)
    whole.update(first)
    yield first
    for line in writer.lines(checkpoints):
        whole.update(line)
        yield line
    yield end_line(writer.counts, whole.hexdigest())


def identity_of(workflow_id: str, checkpoints: Iterable[CheckpointData]) -> str:
    """Return a digest that two runs share where they have the same history, whatever their ids and stores.

    Args:
        workflow_id: the run, for errors.
        checkpoints: all its checkpoints, attempt by attempt and the oldest first.
    """
    writer = RunWriter(workflow_id)
    for _ in writer.lines(checkpoints, is_whole=False):
        pass
    digest: str = writer.identity.hexdigest()
    return digest
