"""Later verifications of a run's evidence: notes among its messages, which no step takes; the record is not changed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs

from flowckpt.core.records.wait import Signal, WaitKind, birth_of, sent_to
from flowckpt.core.system.clock import Clock
from flowckpt.core.system.ids import new_message_id
from flowckpt.errors import FlowckptError
from flowckpt.stores.base import Ability, StoreBase

_MOST_NOTES = 50
"""So many notes are kept before the next one takes their place."""
_MOST_CHECKPOINTS = 1_000

_log = logging.getLogger("flowckpt")


@attrs.frozen
class LaterCheck:
    """The newest verification of a checkpoint since it was saved.

    Attributes:
        at: when.
        verified: whether its evidence held.
        held_at: when it last held; None if it never held since.
        counts: the number of claims: `total`, `verified`, `failed`.
    """

    at: datetime
    verified: bool
    held_at: datetime | None
    counts: Mapping[str, int]

    def to_document(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        held = None if self.held_at is None else self.held_at.isoformat()
        return {"at": self.at.isoformat(), "verified": self.verified, "held_at": held, "counts": dict(self.counts)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> LaterCheck:
        """Return the check of a document."""
        held = document["held_at"]
        counts = {str(name): int(count) for name, count in document["counts"].items()}
        held_at = None if held is None else datetime.fromisoformat(held)
        return cls(datetime.fromisoformat(document["at"]), document["verified"] is True, held_at, counts)


@attrs.define
class Verifications:
    """The results of later verifications of a run.

    Attributes:
        checkpoints: the newest check by the sequence of its checkpoint.
        claims: the number of claims by kind and answer, those of refused commits included.
    """

    checkpoints: dict[int, LaterCheck] = attrs.field(factory=dict)
    claims: dict[str, Counter[str]] = attrs.field(factory=dict)

    @classmethod
    def of(
        cls, answers: Sequence[tuple[str, str]], now: datetime, sequence: int = 0, *, is_verified: bool = False
    ) -> Verifications:
        """Return what one verification found.

        Args:
            answers: the kind and the answer of each claim that was checked.
            now: when.
            sequence: the checkpoint; 0 for a commit that was refused, so that there is none.
            is_verified: whether its evidence held.
        """
        found = cls()
        for kind, answer in answers:
            found.claims.setdefault(kind, Counter())[answer] += 1
        if sequence and answers:
            given = Counter(answer for _, answer in answers)
            counts = {"total": len(answers), "verified": given["verified"], "failed": given["failed"]}
            found.checkpoints[sequence] = LaterCheck(now, is_verified, now if is_verified else None, counts)
        return found

    def add(self, other: Verifications) -> None:
        """Add what a newer note says."""
        for kind, answers in other.claims.items():
            self.claims.setdefault(kind, Counter()).update(answers)
        for sequence, check in other.checkpoints.items():
            before = self.checkpoints.pop(sequence, None)
            held_at = check.held_at if check.held_at is not None or before is None else before.held_at
            self.checkpoints[sequence] = attrs.evolve(check, held_at=held_at)

    def to_document(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        newest = list(self.checkpoints.items())[-_MOST_CHECKPOINTS:]
        return {
            "checkpoints": {str(sequence): check.to_document() for sequence, check in newest},
            "claims": {kind: dict(answers) for kind, answers in self.claims.items()},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Verifications:
        """Return the verifications of a document."""
        checks = {int(key): LaterCheck.from_document(each) for key, each in document["checkpoints"].items()}
        claims = {
            str(kind): Counter({str(answer): int(count) for answer, count in answers.items()})
            for kind, answers in document["claims"].items()
        }
        return cls(checks, claims)


def verifications_in(messages: Iterable[Signal]) -> Verifications:
    """Return what the notes among a run's messages say; damaged ones are left out."""
    notes = [each for each in messages if each.kind is WaitKind.VERIFICATION and isinstance(each.data, Mapping)]
    replaced = {str(name) for note in notes for name in note.data.get("replaces") or ()}
    found = Verifications()
    for note in sorted(notes, key=lambda each: each.sent_at):
        if note.signal_id not in replaced:  # else a crash came between the new note and the removal of this one
            try:
                found.add(Verifications.from_document(note.data))
            except (LookupError, TypeError, ValueError, AttributeError):
                _log.warning("a note about verifications is damaged and not counted: %s", note.signal_id)
    return found


async def read_verifications(store: StoreBase, workflow_id: str, metadata: Mapping[str, Any]) -> Verifications:
    """Return what later verifications of a run found.

    Args:
        store: where the run is; a store without messages has no notes.
        workflow_id: the run.
        metadata: of the run; notes of an earlier run with the same id do not count.
    """
    if not store.has(Ability.SIGNALS):
        return Verifications()
    return verifications_in(sent_to(metadata, await store.signals(workflow_id)))


async def note_verification(
    store: StoreBase, clock: Clock, workflow_id: str, metadata: Mapping[str, Any], found: Verifications
) -> None:
    """Note a verification. It is worth no less if that is impossible, as in a store that is only read.

    Args:
        store: where the run is.
        clock: the time.
        workflow_id: the run.
        metadata: of the run.
        found: what was found.
    """
    if not store.has(Ability.SIGNALS) or not (found.claims or found.checkpoints):
        return
    try:
        before = sent_to(metadata, await store.signals(workflow_id))
        notes = [each for each in before if each.kind is WaitKind.VERIFICATION]
        data: dict[str, Any] = found.to_document()
        if len(notes) >= _MOST_NOTES:
            together = verifications_in(notes)
            together.add(found)
            data = {**together.to_document(), "replaces": [each.signal_id for each in notes]}
        birth, kind = birth_of(metadata), WaitKind.VERIFICATION
        note = Signal(new_message_id(), "verification", clock.now(), data, kind=kind, birth=birth)
        await store.send_signal(workflow_id, note)
        if "replaces" in data:
            await store.remove_signals(workflow_id, data["replaces"])
    except FlowckptError as error:
        _log.info("run %s: its verification is not counted: %s", workflow_id, error)
