"""The contract of a check, which compares one kind of claim with the outside world.

A check returns its result as an `Outcome`, and raises one of the errors below if it cannot find out. It blocks: the
verifier calls it where blocking is allowed. It must end in bounded time for any claim, because claims come from
records, and records may have been written by others.

A kind of database has its own contract: return all matching rows, and be unable to do anything else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import PurePath
from typing import Any, Protocol

import attrs

from flowckpt.core.records.checkpoint import recorded_claims
from flowckpt.core.system.clock import Clock, SystemClock
from flowckpt.core.system.declared import is_unicode
from flowckpt.core.system.secret import HIDDEN
from flowckpt.errors import EvidenceCaptureError, EvidenceError, FlowckptError
from flowckpt.evidence.claims import Capture, Evidence
from flowckpt.evidence.report import Moment, VerdictStatus
from flowckpt.evidence.sandbox import Sandbox

# The permissions and limits of a verifier: plain values, so that they can be sent to the workers of an executor.


class Mode(StrEnum):
    """How files are compared with the record."""

    HASH = "hash"
    """Read every byte."""
    STAT = "stat"
    """Skip the bytes of a file whose device, inode, size and times are those of the capture."""


@attrs.frozen
class Limits:
    """How much time and memory a check may use. A claim that needs more is not verified.

    Attributes:
        file_bytes: the largest file to hash, by apparent size.
        hash_seconds: the time to read one file or tree.
        tree_entries: the number of entries in a tree.
        tree_depth: the depth of a tree.
        query_seconds: the time of a query.
        value_bytes: the largest value of a query.
        network_seconds: the time of a network check, from name resolution to the last byte.
        body_bytes: the largest body of an API response.
        predicate_seconds: the time of a predicate.
        retry_seconds: the time to wait for claims that are checked again.
    """

    file_bytes: int = 64 << 30
    hash_seconds: float = 900.0
    tree_entries: int = 1_000_000
    tree_depth: int = 200
    query_seconds: float = 10.0
    value_bytes: int = 16 << 20
    network_seconds: float = 10.0
    body_bytes: int = 1 << 20
    predicate_seconds: float = 60.0
    retry_seconds: float = 600.0


def _hide_headers(headers: Mapping[str, str]) -> str:
    return repr(dict.fromkeys(headers, HIDDEN))


@attrs.frozen
class AllowedHost:
    """A host and port that network claims may reach, with credentials, which must not be part of recorded claims.

    Attributes:
        host: a name or an address. An address in a private, loopback or link-local range is reachable only if the
            address itself is allowed.
        port: the port.
        headers: request headers for this host only; never shown.
        ca_file: certificates to trust instead of the system's.
    """

    host: str
    port: int
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=_hide_headers)
    ca_file: str | None = None

    @classmethod
    def parse(cls, text: str) -> AllowedHost:
        """Return the entry of `host:port` or `[address]:port`."""
        host, colon, port = text.rpartition(":")
        if not colon or not host or not (port.isascii() and port.isdigit()):
            raise EvidenceError(
                f"{text!r} is not a host and port", remedy="Write 'api.example.com:443' or '[2001:db8::1]:443'."
            )
        return cls(host, int(port))


@attrs.frozen
class StepFacts:
    """The facts about the step whose claims are checked.

    Attributes:
        exit_code: the exit code of the step's command, now or as recorded; None if it ran none.
        transient_held: how many transient claims held when the step ended; None if that is not known.
    """

    exit_code: int | None = None
    transient_held: int | None = None

    @classmethod
    def from_record(cls, document: Mapping[str, Any]) -> StepFacts:
        """Return the facts that the record of a step's claims has.

        Args:
            document: the record.
        """
        code, claims = document.get("exit_code"), recorded_claims(document)
        transient = [verdict for claim, verdict in claims if isinstance(claim, Mapping) and claim.get("transient")]
        held = sum(verdict.get("status") == "verified" for verdict in transient)
        return cls(code if type(code) is int else None, held if any(transient) else None)


@attrs.frozen
class Settings:
    """All that a check may know besides its claim; picklable.

    Attributes:
        base_path: the directory where relative paths start, as an absolute path.
        allow_absolute: whether absolute paths may leave it.
        mode: how files are compared.
        allowed_hosts: the hosts that network claims may reach.
        limits: limits of time and memory.
        moment: when the claims are checked.
        facts: the facts about the step.
        databases: the program's databases, by name.
    """

    base_path: str
    allow_absolute: bool = False
    mode: Mode = Mode.HASH
    allowed_hosts: tuple[AllowedHost, ...] = ()
    limits: Limits = Limits()
    moment: Moment = Moment.NOW
    facts: StepFacts = StepFacts()
    databases: Mapping[str, str] = attrs.field(factory=dict)


class MalformedClaimError(FlowckptError):
    """The claim itself is invalid."""


class RefusedClaimError(FlowckptError):
    """The claim requires something that the verifier may not do."""


class UncheckableClaimError(FlowckptError):
    """The claim cannot be checked: a driver is missing, a file is unreadable, a database is locked."""


class CheckTimeoutError(FlowckptError, TimeoutError):
    """The check exceeded its time limit."""


@attrs.frozen
class Outcome:
    """The outcome of a check.

    Attributes:
        status: the answer.
        error: why the claim is not verified; None if it is.
        details: what differs, leaf by leaf.
        method: how it was checked, if there are several ways.
    """

    status: VerdictStatus
    error: str | None = None
    details: tuple[str, ...] = ()
    method: str = ""


VERIFIED = Outcome(VerdictStatus.VERIFIED)
VERIFIED_BY_STAT = Outcome(VerdictStatus.VERIFIED, method="stat")
VERIFIED_BY_HASH = Outcome(VerdictStatus.VERIFIED, method="hash")


def failed_outcome(error: str, *details: str, method: str = "") -> Outcome:
    """Return the outcome of a claim that does not hold."""
    return Outcome(VerdictStatus.FAILED, error, details, method)


def denied_error(claim: Evidence, detail: str) -> EvidenceCaptureError:
    """Return the error of a claim that does not hold: its verdict is `failed_outcome`, and nothing is captured for it."""
    return EvidenceCaptureError(evidence_type=str(claim.evidence_type), description=claim.description, detail=detail)


def uncaptured_outcome(claim: Evidence) -> Outcome:
    """Return the outcome of a claim whose facts were never captured."""
    return Outcome(
        VerdictStatus.UNCAPTURED,
        f"{claim.description}: there are no recorded facts to compare with; capture it when the step commits",
    )


@attrs.define
class CheckContext:
    """The permissions and tools of a check.

    Attributes:
        settings: permissions and limits.
        sandbox: the files that it may read.
        clock: the time.
        predicates: the functions that the program passed, by name; empty on another worker.
        executor: runs pieces of large work; None if the check itself runs there.
    """

    settings: Settings
    sandbox: Sandbox
    clock: Clock = attrs.field(factory=SystemClock)
    predicates: Mapping[str, Callable[..., Any]] = attrs.field(factory=dict)
    executor: Executor | None = None

    def deadline_after(self, seconds: float) -> Deadline:
        """Return the deadline after a number of seconds."""
        return Deadline(self.clock.elapsed_ns, self.clock.elapsed_ns() + int(seconds * 1e9), seconds)


@attrs.frozen
class Deadline:
    """The end of a check's time.

    Attributes:
        elapsed_ns: the monotonic clock.
        at_ns: the time of the deadline.
        seconds: the whole time limit, for the message.
    """

    elapsed_ns: Callable[[], int]
    at_ns: int
    seconds: float

    def left(self) -> float:
        """Return the remaining seconds.

        Raises:
            CheckTimeoutError: the deadline has passed.
        """
        left = self.at_ns - self.elapsed_ns()
        if left <= 0:
            raise CheckTimeoutError(f"it took longer than the limit of {self.seconds:g} s")
        return left / 1e9

    def is_over(self) -> bool:
        """Return whether the deadline has passed."""
        return self.elapsed_ns() >= self.at_ns


class Check:
    """A kind of claim. Subclass it, write `verify`, and register an instance in the entry-point group `flowckpt.evidence`.

    Attributes:
        is_slow: whether it waits for the network or a database; slow checks run in parallel.
        is_local: whether only the program's own process can answer, so that a quorum is impossible.
        splits_work: whether it passes work to the executor itself, and so must not run on it.
    """

    is_slow: bool = False
    is_local: bool = False
    splits_work: bool = False

    def verify(self, claim: Evidence, context: CheckContext) -> Outcome | Awaitable[Outcome]:
        """Compare a claim with the outside world; an awaitable is awaited in the program's loop.

        Args:
            claim: the claim.
            context: what the check may use.
        """
        raise NotImplementedError(f"{type(self).__qualname__} cannot verify")

    def verify_uncaptured(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Check a claim without facts; most kinds cannot.

        Args:
            claim: the claim.
            context: what the check may use.
        """
        return uncaptured_outcome(claim)

    def capture(self, claim: Evidence, context: CheckContext) -> Evidence:
        """Return the claim with captured facts; kinds without facts return it unchanged.

        Args:
            claim: the claim.
            context: what the check may use.
        """
        return claim


# Facts of a claim, which must be validated: a record may contain anything.


_DIGEST = re.compile(r"(?:sha256:)?([0-9a-fA-F]{64})")


def parse_path(claim: Evidence) -> str:
    """Return the path of a claim."""
    path = claim.expected.get("path")
    if isinstance(path, PurePath):
        path = os.fspath(path)
    if type(path) is not str or not path:
        raise MalformedClaimError(f"'path' is {path!r:.80}, not a path", remedy="Write a text that is not empty.")
    if "\0" in path:
        raise MalformedClaimError(f"'path' is {path!r:.80}, but a path cannot contain NUL")
    return path


def parse_sha256(claim: Evidence) -> str:
    """Return a SHA-256 of a claim as 64 lower-case digits; upper case and the prefix `sha256:` are accepted."""
    value = claim.expected.get("sha256")
    match = _DIGEST.fullmatch(value) if type(value) is str else None
    if match is None:
        raise MalformedClaimError(f"'sha256' is {value!r:.80}, not a SHA-256", remedy="Write 64 hex digits.")
    return match[1].lower()


def parse_whole_number(facts: Mapping[str, Any], name: str, smallest: int, largest: int) -> int:
    """Return a whole number of a claim; `True` is refused."""
    value = facts.get(name)
    if type(value) is not int or not smallest <= value <= largest:
        raise MalformedClaimError(f"{name!r} is {value!r:.80}, and not a whole number from {smallest} to {largest}")
    return value


def parse_text(facts: Mapping[str, Any], name: str) -> str:
    """Return a text of a claim."""
    value = facts.get(name)
    if type(value) is not str or not value:
        raise MalformedClaimError(f"{name!r} is {value!r:.80}, and not a text")
    return value


def check_encodable(text: str) -> str:
    """Return a text that can be sent to a database."""
    if not is_unicode(text):
        raise MalformedClaimError(f"{text!r:.80} is not a text")
    return text


def parse_mapping(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a mapping with text keys from a claim; empty if the fact is missing."""
    value = facts.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping) or any(type(key) is not str for key in value):
        raise MalformedClaimError(f"{name!r} is {value!r:.80}, and not a mapping with text keys")
    return dict(value)


# Messages about files that differ from the record.


def format_age(between: timedelta) -> str:
    """Return a time span as text in one unit: `40 ms`, `12 s`, `2 h`, `3 days`.

    Args:
        between: the span; not negative.
    """
    seconds = between.total_seconds()
    for limit, unit, per in ((1, "ms", 0.001), (120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / per:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def describe_change(found: os.stat_result, captured: Capture | None) -> str:
    """Return when a file was changed, relative to its capture; empty without a capture."""
    if captured is None:
        return ""
    changed = datetime.fromtimestamp(found.st_mtime, UTC)
    if changed >= captured.at:
        return f"; changed {format_age(changed - captured.at)} after the checkpoint"
    touched = datetime.fromtimestamp(found.st_ctime, UTC)
    if touched >= captured.at:
        return (
            f"; replaced or changed {format_age(touched - captured.at)} after the checkpoint, "
            f"though its modification time is {format_age(captured.at - changed)} before"
        )
    return ""


def shorten_digest(digest: str) -> str:
    """Return the start of a digest, enough to distinguish two.

    Args:
        digest: hexadecimal digits.
    """
    return f"{digest[:8]}…"


@attrs.frozen
class Query:
    """The rows to read.

    Attributes:
        table: the table, as named in the claim.
        columns: the columns to return; may be empty.
        where: columns and their values, compared so that NULL equals NULL.
    """

    table: str
    columns: Sequence[str]
    where: Mapping[str, Any]


class NoSuchThingError(Exception):
    """The database, the table or a column does not exist, so the claim does not hold; the text names what is missing."""


class Database(Protocol):
    """A kind of database."""

    def rows(
        self, database: str, query: Query, context: CheckContext
    ) -> AbstractContextManager[Iterator[tuple[Any, ...]]]:
        """Return all matching rows, one by one.

        Identifiers are looked up in the catalogue and quoted, values bound, the connection is read-only, a missing
        database is not created, the time is limited, and at the end everything is closed.

        Raises:
            NoSuchThingError: the database, the table or a column does not exist.
        """
        ...

    def is_same(self, wanted: Any, found: Any) -> bool:
        """Return whether a row's value is the claimed one.

        Args:
            wanted: the value of the claim, or the digest of a secret value.
            found: the value of the row.
        """
        ...
