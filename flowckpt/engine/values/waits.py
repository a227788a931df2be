"""The waits of one attempt: what its steps wait for, which messages they have taken, and which approvals bind what follows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt import evidence
from flowckpt.core.identity.inputs_hash import canonical
from flowckpt.core.records import StepResult
from flowckpt.core.records.wait import KEY, TAKEN, Wait, due_at, waits_in
from flowckpt.core.system.attrs_base import lazy_define
from flowckpt.engine.rules.paths import is_after, is_within

if TYPE_CHECKING:
    from flowckpt.core.dsl.waits import ApprovalAction
    from flowckpt.evidence import EvidencePack


SHORT_SECONDS = 60.0
"""A wait that ends by itself within so many seconds keeps the process, by default."""


class Suspended(BaseException):
    """No error, and no `Exception`: raised where a step waits, and caught where everything else has come to rest.

    Attributes:
        paths: the steps that wait, in the order of the program.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        super().__init__()
        self.paths = tuple(paths)


@attrs.define(eq=False, repr=False)
class Waits:
    """The waits of the steps of a run, by path.

    Attributes:
        is_changed: whether it says something else than the metadata of the run do.
        approved: the approvals that bind what comes behind them, by path.
        started: the steps that wait and whose start was emitted.
        fan_outs: how many fan-outs are running: while there are any, other steps run on while one waits.
    """

    _open: dict[str, Wait] = attrs.field(factory=dict)
    _taken: set[str] = attrs.field(factory=set)
    is_changed: bool = False
    approved: dict[str, StandingApproval] = attrs.field(factory=dict)
    started: set[str] = attrs.field(init=False, factory=set)
    fan_outs: int = attrs.field(init=False, default=0)
    _written: tuple[dict[str, Wait], int] = attrs.field(init=False, factory=lambda: ({}, 0))

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Waits:
        """Return the waits of a run.

        Args:
            metadata: of its newest checkpoint.
        """
        waits, taken = {wait.path: wait for wait in waits_in(metadata)}, set(metadata.get(TAKEN, ()))
        found = cls(waits, taken)
        found._written = dict(waits), len(taken)
        return found

    @property
    def all(self) -> tuple[Wait, ...]:
        """All of them: in the order of the program once the run is at rest, before in the order in which they were met."""
        return tuple(self._open.values())

    @property
    def voided(self) -> tuple[str, ...]:
        """The approvals that were found void in this attempt: nothing after them runs in it."""
        return tuple(path for path, each in self.approved.items() if each.is_void)

    @property
    def taken(self) -> Collection[str]:
        """The ids of messages that were taken by results which no longer count."""
        return self._taken

    def get(self, path: str) -> Wait | None:
        """Return the wait of a step, or None.

        Args:
            path: the step.
        """
        return self._open.get(path)

    def those_of(self, paths: Iterable[str]) -> tuple[Wait, ...]:
        """Return the waits of some steps.

        Args:
            paths: the steps.
        """
        return tuple(self._open[path] for path in paths if path in self._open)

    def begin(self, wait: Wait) -> None:
        """Add a wait.

        Args:
            wait: the wait.
        """
        self._open[wait.path] = wait
        self.is_changed = True

    def end(self, path: str) -> None:
        """Forget the wait of a step that has ended.

        Args:
            path: the step.
        """
        if self._open.pop(path, None) is not None:
            self.is_changed = True

    def end_within(self, path: str) -> None:
        """Forget the waits nested in a step that has ended without them.

        Args:
            path: the step.
        """
        for each in [each for each in self._open if is_within(each, path)]:
            self.end(each)

    def retain(self, paths: Iterable[str]) -> None:
        """Forget all waits but those of some steps, because the run has come to rest at these.

        Args:
            paths: the steps, in the order in which their waits are recorded and shown.
        """
        rest = {path: self._open[path] for path in paths if path in self._open}
        if list(rest) != list(self._open):
            self._open, self.is_changed = rest, True

    def take(self, signal_id: str) -> None:
        """Note a message that was taken, and that no result names.

        Args:
            signal_id: the message.
        """
        self._taken.add(signal_id)
        self.is_changed = True

    def drop_stale(self, dropped: Iterable[StepResult], *, takes_later: bool) -> None:
        """Take results out: the messages that they took stay taken, and the waits after them begin again.

        Args:
            dropped: the results.
            takes_later: whether what comes after them starts again, too.
        """
        dropped = tuple(dropped)
        anew = {each.path: each for each in dropped if (wait := self._open.get(each.path)) and wait.is_newer_than(each)}
        for result in dropped:
            self.approved.pop(result.path, None)
            if result.signal:
                self.take(result.signal)
            for path in list(self._open):
                if path in anew and not _is_before(result, anew[path]):
                    continue  # it was asked again because that result no longer holds
                if is_after(path, result.path) if takes_later else is_within(path, result.path):
                    self.end(path)

    def is_worth_a_save(self, wait: Wait) -> bool:
        """Return whether a wait that was just met is saved although other steps still run.

        Only where something is fixed that a crash would lose, and not where there are many: each save names all waits.

        Args:
            wait: the wait.
        """
        return (wait.due_at is not None or bool(wait.claims)) and len(self._open) <= _FEW

    def written_to(self, metadata: Mapping[str, Any], *, is_at_rest: bool) -> Mapping[str, Any]:
        """Return the metadata of the run with what there is to say.

        Args:
            metadata: the metadata.
            is_at_rest: whether everything in the run waits, or the attempt ends.
        """
        if not self._is_to_be_written(is_at_rest):
            return metadata
        kept = {name: value for name, value in metadata.items() if name not in (KEY, TAKEN)}
        if self._open:
            kept[KEY] = {path: wait.to_document() for path, wait in self._open.items()}
        if self._taken:
            kept[TAKEN] = sorted(self._taken)
        self.is_changed, self._written = False, (dict(self._open), len(self._taken))
        return kept

    def _is_to_be_written(self, is_at_rest: bool) -> bool:
        """Tell whether to rebuild the metadata. They are repeated in whole, so where there are many, not each time.

        What they name too much are waits that have ended: their results say so.
        """
        written, taken = self._written
        if not self.is_changed or (len(self._open) <= _FEW and len(written) <= _FEW):
            return self.is_changed
        has_only_ended = len(self._taken) == taken and all(
            written.get(path) is each for path, each in self._open.items()
        )
        is_as_due = due_at(self._open.values()) == due_at(written.values())
        return is_at_rest and not (has_only_ended and is_as_due and 2 * len(self._open) >= len(written))


_FEW = 64


def _is_before(result: StepResult, other: StepResult) -> bool:
    return result.started_at is not None and other.started_at is not None and result.started_at < other.started_at


def waits_after_rollback(
    metadata: Mapping[str, Any], earlier: Mapping[str, Any], dropped: Iterable[StepResult]
) -> dict[str, Any]:
    """Return the metadata of a run that goes back: it waits for what it waited for then, and takes no message twice.

    Args:
        metadata: of the run as it is.
        earlier: of the checkpoint that it goes back to.
        dropped: the results that no longer count.
    """
    kept = {name: value for name, value in metadata.items() if name not in (KEY, TAKEN)}
    taken = {*metadata.get(TAKEN, ()), *(result.signal for result in dropped if result.signal)}
    if taken:
        kept[TAKEN] = sorted(taken)
    if KEY in earlier:
        kept[KEY] = earlier[KEY]
    return kept


def without_waits(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata for a new run that begins with the history of another: it has no messages, and its waits begin again.

    Args:
        metadata: of the other run.
    """
    return {name: value for name, value in metadata.items() if name not in (KEY, TAKEN)}


@lazy_define(eq=False, repr=False)
class StandingApproval:
    """An approval that was given, and of which the bytes that were approved must stay what they are.

    Attributes:
        path: its step.
        action: what the step asks for.
        pack: what was approved, with its facts.
        by: who approved.
        asked_at: when it was asked for.
        request: the question that was answered; empty where an earlier attempt has asked it.
        is_void: whether it no longer holds.
    """

    path: str
    action: ApprovalAction
    pack: EvidencePack
    by: str
    asked_at: datetime
    request: str = ""
    is_void: bool = False


# What an approval is bound to, as digests that people and programs can compare.


def digests_of(wait: Wait) -> dict[str, str]:
    """Return what an approval is bound to: the digest of each claim, by its description.

    Args:
        wait: the approval.
    """
    if not wait.claims:
        return {}
    found = {}
    for claim in evidence.EvidencePack.from_document(wait.claims):
        facts = claim.expected
        digest = facts.get("sha256") or facts.get("digest")
        if not isinstance(digest, str):
            digest = sha256(canonical(claim.to_document()["expected"])).hexdigest()
        found[claim.description] = digest
    return found
