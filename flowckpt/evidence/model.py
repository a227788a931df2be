"""Claims about the outside world, as a program writes them and as a record keeps them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.errors import EvidenceError
from flowckpt.evidence.evidence_type import EvidenceType, known_or_text
from flowckpt.evidence.redaction import redacted, redacted_text
from flowckpt.lazy import LazyModule

if TYPE_CHECKING:
    documents: Any
else:  # the codec lies a row above the records; claims are written down only where a store is at hand
    documents = LazyModule("flowckpt.evidence.documents")


class State(StrEnum):
    """Where the facts of a claim come from."""

    STATED = "stated"
    """The program gave them."""
    UNCAPTURED = "uncaptured"
    """Nobody yet: `EvidenceVerifier.capture` takes them from the world when the step commits."""
    CAPTURED = "captured"
    """They were taken from the world when the step committed."""
    UNREADABLE = "unreadable"
    """A newer program recorded them in a form that this one cannot read; the document is kept as it is."""


@attrs.frozen
class Capture:
    """What was seen when a claim was captured.

    Attributes:
        at: when, aware and in UTC.
        signature: (device, inode, size, mtime_ns, ctime_ns) of a file that had settled; else None.
        facts: what else was seen, for verdicts that go down to the leaf.
    """

    at: datetime
    signature: tuple[int, ...] | None = None
    facts: Mapping[str, Any] = attrs.field(factory=dict)


def _kind(value: object) -> EvidenceType | str:
    if isinstance(value, str) and value.strip() and value.isprintable():
        return known_or_text(value)
    raise EvidenceError(
        f"{value!r:.80} is no kind of evidence", remedy="Give a member of EvidenceType, or the name of a plugin's kind."
    )


def _private_copy(value: object) -> Any:
    if not isinstance(value, Mapping):
        raise EvidenceError(f"a claim's facts are a mapping, not {value!r:.80}", remedy="Write a dict.")
    # A frozen claim must not change with the dict that it was made of.
    return {key: item if type(item) in _LEAVES else copy.deepcopy(item) for key, item in value.items()}


_LEAVES = frozenset({str, int, float, bool, type(None), bytes})


def _checked_quorum(claim: Evidence, _: object, value: object) -> None:
    if type(value) is not int or value < 1:
        raise EvidenceError(
            f"a quorum is a number of workers, not {value!r:.80}",
            evidence_type=str(claim.evidence_type),
            remedy="Write .quorum(3).",
        )


@attrs.frozen(repr=False, eq=True, unsafe_hash=False)
class Evidence:
    """A claim about the outside world.

    Attributes:
        evidence_type: its kind: an `EvidenceType`, or the name of a plugin's or a newer program's kind.
        description: what it claims, for people.
        expected: the facts that must hold.
        metadata: what helps to check them.
        state: where the facts come from.
        is_transient: whether it need be true only when the step commits.
        workers: how many workers must agree on it; 1 where no quorum was asked for.
        captured: what was seen at the capture, or None.
        extra: fields of the record that this version does not know, kept.
    """

    evidence_type: EvidenceType | str = attrs.field(converter=_kind)
    description: str
    expected: Mapping[str, Any] = attrs.field(converter=_private_copy)
    metadata: Mapping[str, Any] = attrs.field(factory=dict, converter=_private_copy)
    state: State = attrs.field(default=State.STATED, kw_only=True)
    is_transient: bool = attrs.field(default=False, kw_only=True)
    workers: int = attrs.field(default=1, kw_only=True, validator=_checked_quorum)
    captured: Capture | None = attrs.field(default=None, kw_only=True)
    extra: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True)

    def transient(self) -> Evidence:
        """Return the claim as one that need be true only when the step commits: a resume does not check it again."""
        return attrs.evolve(self, is_transient=True)

    def quorum(self, workers: int) -> Evidence:
        """Return the claim as one on which several workers of the verifier's executor must agree.

        Args:
            workers: how many.
        """
        return attrs.evolve(self, workers=workers)

    @property
    def is_captured(self) -> bool:
        """Whether there are facts to compare with."""
        return self.state is not State.UNCAPTURED

    @property
    def hidden_names(self) -> frozenset[str]:
        """Names whose values the program marked as secret."""
        named = self.metadata.get("secret", ())
        return frozenset(name for name in named if isinstance(name, str)) if isinstance(named, list | tuple) else _NONE

    def __repr__(self) -> str:
        """Show the claim without its secrets: a repr ends in logs."""
        hidden = self.hidden_names
        parts = [f"{self.evidence_type!s}: {redacted_text(self.description)!r}", f"{redacted(self.expected, hidden)!r}"]
        parts += [f"metadata={redacted(self.metadata, hidden)!r}"] * bool(self.metadata)
        parts += [str(self.state)] * (self.state is not State.STATED) + ["transient"] * self.is_transient
        return f"Evidence({', '.join(parts)})"

    def to_document(self) -> dict[str, Any]:
        """Return the claim as plain JSON; `from_document` returns an equal one."""
        document: dict[str, Any] = documents.document_of_evidence(self)
        return document

    @classmethod
    def from_document(cls, document: Any) -> Evidence:
        """Return the claim of a document, also of a kind or in a form that this version does not know.

        Args:
            document: what `to_document` returned, perhaps by way of JSON text.

        Raises:
            DecodingError: the document is not that of a claim.
        """
        evidence: Evidence = documents.evidence_of_document(document)
        return evidence


_NONE: frozenset[str] = frozenset()


def _claims(value: Any) -> tuple[Evidence, ...]:
    if isinstance(value, Evidence):
        raise EvidenceError(f"a pack is made of a list of claims, not of {value!r:.80}", remedy="Put it into a list.")
    claims = tuple(value)
    for claim in claims:
        if not isinstance(claim, Evidence):
            raise EvidenceError(f"{claim!r:.80} in a pack is no Evidence", remedy="Use flowckpt.evidence's claims.")
    return claims


def _checked_flag(_: EvidencePack, field: attrs.Attribute[bool], value: object) -> None:
    if type(value) is not bool:
        raise EvidenceError(f"{field.name} is True or False, not {value!r:.80}", remedy="Write the one or the other.")


def _checked_minimum(pack: EvidencePack, _: object, value: object) -> None:
    if type(value) is not int or value < 0:
        raise EvidenceError(f"min_verified is a number of claims, not {value!r:.80}", remedy="Write 0, 1, 2 …")
    if value > len(pack.evidence_list):
        raise EvidenceError(
            f"min_verified is {value}, and the pack has only {len(pack.evidence_list)} claims: it could never hold",
            remedy="Add claims, or ask for fewer.",
        )


@attrs.frozen
class EvidencePack:
    """The claims of one step or checkpoint, with the policy that decides over them (`flowckpt.evidence.policy`).

    Attributes:
        evidence_list: the claims.
        require_all: whether every claim must hold. Applies unless partial success is allowed.
        allow_partial: whether some claims may fail.
        min_verified: how many must hold where some may fail; at least one always must.
        extra: fields of the record that this version does not know, kept.
    """

    evidence_list: Sequence[Evidence] = attrs.field(converter=_claims)
    require_all: bool = attrs.field(default=True, validator=_checked_flag)
    allow_partial: bool = attrs.field(default=False, validator=_checked_flag)
    min_verified: int = attrs.field(default=0, validator=_checked_minimum)
    extra: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True)

    def __len__(self) -> int:
        return len(self.evidence_list)

    def __iter__(self) -> Iterator[Evidence]:
        return iter(self.evidence_list)

    def to_document(self) -> dict[str, Any]:
        """Return the pack as plain JSON; `from_document` returns an equal one."""
        document: dict[str, Any] = documents.document_of_pack(self)
        return document

    @classmethod
    def from_document(cls, document: Any) -> EvidencePack:
        """Return the pack of a document.

        Args:
            document: what `to_document` returned, perhaps by way of JSON text.

        Raises:
            DecodingError: the document is not that of a pack.
        """
        pack: EvidencePack = documents.pack_of_document(document)
        return pack
