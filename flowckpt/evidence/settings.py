"""What a verifier may do, and how far: plain values, so that they can be sent to the workers of an executor."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import attrs

from flowckpt.errors import EvidenceError
from flowckpt.evidence.redaction import HIDDEN
from flowckpt.evidence.verdict import Moment


class Mode(StrEnum):
    """How files are compared with what was recorded."""

    HASH = "hash"
    """Read every byte."""
    STAT = "stat"
    """Skip the bytes of a file whose device, inode, size and times are those of the capture."""


@attrs.frozen
class Limits:
    """How much time and memory a check may take; a claim that needs more is not verified.

    Attributes:
        file_bytes: the largest file that is hashed, by its apparent size.
        hash_seconds: how long one file or tree may be read.
        tree_entries: how many entries a tree may have.
        tree_depth: how deep a tree may be.
        query_seconds: how long a query may run.
        value_bytes: the largest value that a query may return.
        network_seconds: how long a network check may take, from the name's resolution to the last byte.
        body_bytes: the largest body of an API's response.
        predicate_seconds: how long a predicate may run.
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


def _header_text(headers: Mapping[str, str]) -> str:
    return repr(dict.fromkeys(headers, HIDDEN))


@attrs.frozen
class AllowedHost:
    """A host and port that network claims may reach, and what to say to it.

    Credentials belong here, with the program, and not into claims: claims are recorded.

    Attributes:
        host: a name, or an address. An address in a private, loopback or link-local range may be reached only where
            the address itself is allowed, whatever name led to it.
        port: the port.
        headers: request headers for this host alone; never shown.
        ca_file: the certificates to trust instead of the system's.
    """

    host: str
    port: int
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=_header_text)
    ca_file: str | None = None

    @classmethod
    def parse(cls, text: str) -> AllowedHost:
        """Return the entry of `host:port` or `[address]:port`.

        Args:
            text: the text.
        """
        host, colon, port = text.rpartition(":")
        if not colon or not host or not (port.isascii() and port.isdigit()):
            raise EvidenceError(
                f"{text!r} is no host and port", remedy="Write 'api.example.com:443' or '[2001:db8::1]:443'."
            )
        return cls(host, int(port))


@attrs.frozen
class StepFacts:
    """What is known of the step whose claims are checked.

    Attributes:
        exit_code: what the step's command really returned, now or as recorded; None where it ran none.
    """

    exit_code: int | None = None


@attrs.frozen
class Settings:
    """All that a check may know besides its claim; picklable.

    Attributes:
        base_path: the directory against which relative paths are taken, absolute.
        allow_absolute: whether absolute paths may lead out of it.
        mode: how files are compared.
        allowed_hosts: what network claims may reach.
        limits: time and memory.
        moment: why the claims are checked.
        facts: what is known of the step.
    """

    base_path: str
    allow_absolute: bool = False
    mode: Mode = Mode.HASH
    allowed_hosts: tuple[AllowedHost, ...] = ()
    limits: Limits = Limits()
    moment: Moment = Moment.NOW
    facts: StepFacts = StepFacts()
