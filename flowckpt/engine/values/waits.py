"""The waits of one attempt: what its steps wait for, consumed messages, and approvals that bind later steps."""

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
"""By default, the process stays for a wait that ends by itself within this many seconds."""


class Suspended(BaseException):
    """Raised if a step waits, and caught when no other step can run; not an error, so not an `Exception`.

    Attributes:
        paths: the waiting steps, in the order of the program.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        super().__init__()
        self.paths = tuple(paths)


@attrs.define(eq=False, repr=False)
class Waits:
    """The waits of the steps of a run, by path.

    Attributes:
        is_changed: whether it differs from the metadata of the run.
        approved: the approvals that bind later steps, by path.
        started: the waiting steps whose start was emitted.
        fan_outs: how many fan-outs are running; during a fan-out, other steps may run while one waits.
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
            metadata: the metadata of its newest checkpoint.
        """
        waits, taken = {wait.path: wait for wait in waits_in(metadata)}, set(metadata.get(TAKEN, ()))
        found = cls(waits, taken)
        found._written = dict(waits), len(taken)
        return found

    @property
    def all(self) -> tuple[Wait, ...]:
        """All waits: once the run is suspended, in the order of the program; before, in the order of their start."""
        return tuple(self._open.values())

    @property
    def voided(self) -> tuple[str, ...]:
        """The approvals found void in this attempt: it runs no step after them."""
        return tuple(path for path, each in self.approved.items() if each.is_void)

    @property
    def taken(self) -> Collection[str]:
        """The ids of messages consumed by results that no longer count."""
        return self._taken

    def get(self, path: str) -> Wait | None:
        """Return the wait of a step, or None.

        Args:
            path: the step.
        """
        return self._open.get(path)

    def select(self, paths: Iterable[str]) -> tuple[Wait, ...]:
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
        """Forget the waits nested in a step that has ended before them.

        Args:
            path: the step.
        """
        for each in [each for each in self._open if is_within(each, path)]:
            self.end(each)

    def retain(self, paths: Iterable[str]) -> None:
        """Forget all waits except those of some steps, at which the run is suspended.

        Args:
            paths: the steps, in the order in which their waits are recorded and shown.
        """
        rest = {path: self._open[path] for path in paths if path in self._open}
        if list(rest) != list(self._open):
            self._open, self.is_changed = rest, True

    def take(self, signal_id: str) -> None:
        """Note a consumed message that is not named by any result.

        Args:
            signal_id: the message.
        """
        self._taken.add(signal_id)
        self.is_changed = True

    def drop_stale(self, dropped: Iterable[StepResult], *, takes_later: bool) -> None:
        """Drop results: the messages that they consumed stay consumed, and the waits after them start again.

        Args:
            dropped: the results.
            takes_later: whether later steps start again, too.
        """
        dropped = tuple(dropped)
        anew = {each.path: each for each in dropped if (wait := self._open.get(each.path)) and wait.is_newer_than(each)}
        for result in dropped:
            self.approved.pop(result.path, None)
            if result.signal:
                self.take(result.signal)
            for path in list(self._open):
                if path in anew and not _is_before(result, anew[path]):
                    continue  # the question was asked again because the dropped result no longer holds
                if is_after(path, result.path) if takes_later else is_within(path, result.path):
                    self.end(path)

    def is_worth_a_save(self, wait: Wait) -> bool:
        """Return whether to save a new wait while other steps still run.

        That is the case if a crash would lose something fixed by the wait, and if there are not many waits: each save
        contains all of them.

        Args:
            wait: the wait.
        """
        return (wait.due_at is not None or bool(wait.claims)) and len(self._open) <= _FEW

    def add_to_metadata(self, metadata: Mapping[str, Any], *, is_at_rest: bool) -> Mapping[str, Any]:
        """Return the metadata of the run with these waits.

        Args:
            metadata: the metadata.
            is_at_rest: whether every step of the run waits, or the attempt ends.
        """
        if not self._needs_write(is_at_rest):
            return metadata
        kept = drop_waits(metadata)
        if self._open:
            kept[KEY] = {path: wait.to_document() for path, wait in self._open.items()}
        if self._taken:
            kept[TAKEN] = sorted(self._taken)
        self.is_changed, self._written = False, (dict(self._open), len(self._taken))
        return kept

    def _needs_write(self, is_at_rest: bool) -> bool:
        """Return whether to rebuild the metadata: they contain all waits, so not each time if there are many.

        Metadata that were not rebuilt may contain waits that have ended; the results show that.
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


def restore_waits(
    metadata: Mapping[str, Any], earlier: Mapping[str, Any], dropped: Iterable[StepResult]
) -> dict[str, Any]:
    """Return the metadata of a run after a rollback: it has the waits of that time, and consumes no message twice.

    Args:
        metadata: the present metadata of the run.
        earlier: the metadata of the checkpoint to roll back to.
        dropped: the results that no longer count.
    """
    kept = drop_waits(metadata)
    taken = {*metadata.get(TAKEN, ()), *(result.signal for result in dropped if result.signal)}
    if taken:
        kept[TAKEN] = sorted(taken)
    if KEY in earlier:
        kept[KEY] = earlier[KEY]
    return kept


def drop_waits(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata for a fork: it has no messages, and its waits start again.

    Args:
        metadata: the metadata of the source.
    """
    return {name: value for name, value in metadata.items() if name not in (KEY, TAKEN)}


@lazy_define(eq=False, repr=False)
class StandingApproval:
    """A given approval, whose approved facts must stay unchanged.

    Attributes:
        path: the step of the approval.
        action: the step's action.
        pack: the approved claims, with their facts.
        by: who approved.
        asked_at: when the question was asked.
        request: the id of the question; empty if an earlier attempt has asked it.
        is_void: whether the facts have changed.
    """

    path: str
    action: ApprovalAction
    pack: EvidencePack
    by: str
    asked_at: datetime
    request: str = ""
    is_void: bool = False


# The digests that an approval is bound to, for comparison by people and programs.


def approval_digests(wait: Wait) -> dict[str, str]:
    """Return the digests that an approval is bound to, by the description of each claim."""
    if not wait.claims:
        return {}
    digests = {}
    for claim in evidence.EvidencePack.from_document(wait.claims):
        facts = claim.expected
        digest = facts.get("sha256") or facts.get("digest")
        if not isinstance(digest, str):
            digest = sha256(canonical(claim.to_document()["expected"])).hexdigest()
        digests[claim.description] = digest
    return digests
