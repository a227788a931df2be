"""Claims about the outside world, as programs write them and as they are recorded."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import attrs

from flowckpt import evidence  # imported lazily: the documents need the codec, claims alone do not
from flowckpt.core.system.attrs_base import FieldEquality, lazy_frozen
from flowckpt.core.system.declared import module_name, type_name
from flowckpt.core.system.numbers import is_finite_number
from flowckpt.core.system.secret import HIDDEN
from flowckpt.errors import EvidenceError

FOLLOWS_LINKS = "follows_links"
"""Key in the expected facts of a directory: whether the targets of links count, as they do for what a step reads."""

# The kinds of claims of flowckpt itself.


class EvidenceType(StrEnum):
    """The kind of a claim. Kinds of plugins are plain strings."""

    ARTIFACT_EXISTS = "artifact_exists"
    FILE_SHA256 = "file_sha256"
    DIRECTORY_DIGEST = "directory_digest"
    COMMAND_EXIT = "command_exit"
    DB_ROW = "db_row"
    NETWORK_REACHABLE = "network_reachable"
    API_RESPONSE = "api_response"
    PROCESS_EXISTS = "process_exists"
    CONTAINER_RUNNING = "container_running"
    PREDICATE = "predicate"


_KNOWN: dict[str, EvidenceType] = {str(kind): kind for kind in EvidenceType}


_SENSITIVE = (
    r"(?i)authoriz|authoris|\bauth\b|auth[-_]|[-_]auth|token|secret|passw|pwd|passphrase|api[-_ ]?key|access[-_ ]?key|"
    r"private[-_ ]?key|credential|cookie|session|bearer|jwt|\bpin\b|\bdsn\b"
)
# Not urllib.parse, whose import costs as much as all of the claims; a URL that this cannot parse is not shown at all.
_PARTS = r"(?s)([a-zA-Z][a-zA-Z0-9+.-]*)://([^/?#]*@)?([^/?#]*)([^?#]*)(\?)?.*"
_URL = r"(?i)[a-z][a-z0-9+.-]*://\S*"


def is_sensitive(name: object) -> bool:
    """Return whether a name looks like that of a secret."""
    return isinstance(name, str) and re.search(_SENSITIVE, name) is not None


def redact(value: Any, hidden: frozenset[str] = frozenset()) -> Any:
    """Return a copy of a value for display: values under sensitive names are hidden, URLs lose user and query."""
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if is_sensitive(key) or key in hidden else redact(item, hidden) for key, item in value.items()
        }
    if isinstance(value, list):
        return [redact(item, hidden) for item in value]
    if isinstance(value, tuple):
        return tuple(redact(item, hidden) for item in value)
    return redact_text(value) if isinstance(value, str) else value


def redact_text(text: str) -> str:
    """Return text with the possibly secret parts of its URLs removed."""
    return re.sub(_URL, lambda match: format_url(match[0]), text) if "://" in text else text


def format_url(url: str) -> str:
    """Return a URL for display: without user, password, query and fragment."""
    match = re.fullmatch(_PARTS, url)
    return f"{match[1]}://{match[3]}{match[4]}{'?…' if match[5] else ''}" if match else "(a malformed URL)"


def has_credentials(url: str) -> bool:
    """Return whether a URL contains a user or a password."""
    match = re.fullmatch(_PARTS, url)
    return match is not None and match[2] is not None


def find_secrets(value: Any, hidden: frozenset[str] = frozenset(), *, _is_secret: bool = False) -> Iterator[str]:
    """Yield the texts under sensitive names, so that they can be removed from messages of other code."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from find_secrets(item, hidden, _is_secret=_is_secret or is_sensitive(key) or key in hidden)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from find_secrets(item, hidden, _is_secret=_is_secret)
    elif _is_secret and value is not None and not isinstance(value, bool):
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        if len(text) >= 4:  # removing shorter ones could damage the whole sentence
            yield text


def scrub(text: str, secrets: frozenset[str]) -> str:
    """Return text without these secrets, both as plain text and as `repr` shows them.

    Args:
        text: a message of other code, such as an exception or a driver.
        secrets: the texts to remove.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN).replace(repr(secret)[1:-1], HIDDEN)
    return text


class State(StrEnum):
    """The origin of a claim's facts."""

    STATED = "stated"
    """The program gave them."""
    UNCAPTURED = "uncaptured"
    """Not yet known: `EvidenceVerifier.capture` captures them when the step commits."""
    CAPTURED = "captured"
    """They were captured when the step committed."""
    UNREADABLE = "unreadable"
    """A newer program recorded them in a form that this one cannot read; the document is kept unchanged."""


@lazy_frozen(eq=False, repr=False)
class Capture(FieldEquality):
    """The state of the outside world that was captured when a step ended.

    Attributes:
        at: when, aware and in UTC.
        signature: (device, inode, size, mtime_ns, ctime_ns) of an unchanging file, otherwise None.
        facts: further facts, for detailed verdicts.
    """

    at: datetime
    signature: tuple[int, ...] | None = None
    facts: Mapping[str, Any] = attrs.field(factory=dict)


def _to_kind(value: object) -> EvidenceType | str:
    if isinstance(value, str) and value.strip() and value.isprintable():
        return _KNOWN.get(value, value)
    raise EvidenceError(
        f"{value!r:.80} is not a kind of evidence",
        remedy="Give a member of EvidenceType, or the name of a plugin's kind.",
    )


def _copy_facts(value: object) -> Any:
    if not isinstance(value, Mapping):
        raise EvidenceError(f"a claim's facts are a mapping, not {value!r:.80}", remedy="Write a dict.")
    for key, item in value.items():
        if type(item) not in _LEAVES:
            _refuse_scalars(item, str(key))
    # A frozen claim must not change with the dict that it was created from.
    return {key: item if type(item) in _LEAVES else copy.deepcopy(item) for key, item in value.items()}


def _refuse_scalars(value: object, place: str) -> None:
    """Refuse scalars of numpy and pandas, which no record holds: it would be noticed only after the effect."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_scalars(item, f"{place}[{key!r:.80}]")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _refuse_scalars(item, f"{place}[{index}]")
    elif type(value).__module__.partition(".")[0] in ("numpy", "pandas"):
        raise EvidenceError(
            f"a claim cannot be recorded: {place} is {value!r:.80} ({type_name(type(value))})",
            remedy="Write int(x), float(x), str(x), x.tolist() or x.to_pydatetime().",
        )


_LEAVES = frozenset({str, int, float, bool, type(None), bytes})


def _check_count(claim: Evidence, field: attrs.Attribute[int], value: object) -> None:
    if type(value) is not int or value < 1:
        what, remedy = {
            "workers": ("a quorum is a number of workers", "Write .quorum(3)."),
            "attempts": ("attempts is a number of checks", "Write .retry(5, backoff=1)."),
        }[field.name]
        raise EvidenceError(f"{what}, not {value!r:.80}", evidence_type=str(claim.evidence_type), remedy=remedy)


def _check_backoff(claim: Evidence, _: object, value: object) -> None:
    if not is_finite_number(value) or value < 0:
        raise EvidenceError(
            f"backoff is a number of seconds, not {value!r:.80}",
            evidence_type=str(claim.evidence_type),
            remedy="Write .retry(5, backoff=1).",
        )


@lazy_frozen(repr=False, eq=True, unsafe_hash=False)
class Evidence:
    """A claim about the outside world.

    Attributes:
        evidence_type: an `EvidenceType`, or the name of a plugin's or newer version's kind.
        description: what it claims, for people.
        expected: the facts that must hold.
        metadata: details for the check; `secret` names values that are never shown.
        state: where the facts come from.
        is_transient: whether it must hold only when the step ends.
        workers: how many workers must agree; 1 without a quorum.
        attempts: how often it is checked until it holds.
        backoff: seconds before the second check; each further wait is twice as long.
        captured: what was captured when the step ended, or None.
        role: `reads` or `writes` for a file of `.reads()` or `.writes()`, which must hold whatever the pack's policy;
            otherwise empty.
        extra: unknown fields of a newer version, kept.
    """

    evidence_type: EvidenceType | str = attrs.field(converter=_to_kind)
    description: str
    expected: Mapping[str, Any] = attrs.field(converter=_copy_facts)
    metadata: Mapping[str, Any] = attrs.field(factory=dict, converter=_copy_facts)
    state: State = attrs.field(default=State.STATED, kw_only=True)
    is_transient: bool = attrs.field(default=False, kw_only=True)
    workers: int = attrs.field(default=1, kw_only=True, validator=_check_count)
    attempts: int = attrs.field(default=1, kw_only=True, validator=_check_count)
    backoff: float = attrs.field(default=0.0, kw_only=True, validator=_check_backoff)
    captured: Capture | None = attrs.field(default=None, kw_only=True)
    role: str = attrs.field(default="", kw_only=True)
    extra: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True)

    def transient(self) -> Evidence:
        """Return the claim as one that must hold only when the step ends; a resume does not check it again."""
        return attrs.evolve(self, is_transient=True)

    def quorum(self, workers: int) -> Evidence:
        """Return the claim as one on which several workers of the verifier's executor must agree.

        Args:
            workers: the number of workers.
        """
        return attrs.evolve(self, workers=workers)

    def retry(self, attempts: int, backoff: float = 1.0) -> Evidence:
        """Return the claim as one that is checked again until it holds, for systems that show a change late.

        A claim that is malformed or that the verifier may not check is answered at once.

        Args:
            attempts: the number of checks, including the first.
            backoff: seconds before the second check; each further wait is twice as long, at most a minute.
        """
        return attrs.evolve(self, attempts=attempts, backoff=backoff)

    @property
    def is_captured(self) -> bool:
        """Whether there are facts to compare with."""
        return self.state is not State.UNCAPTURED

    @property
    def hidden_names(self) -> frozenset[str]:
        """The names whose values are secret."""
        named = self.metadata.get("secret", ())
        return frozenset(name for name in named if isinstance(name, str)) if isinstance(named, list | tuple) else _NONE

    def __repr__(self) -> str:
        """Show the claim without its secrets: a repr ends in logs."""
        hidden = self.hidden_names
        parts = [f"{self.evidence_type!s}: {redact_text(self.description)!r}", f"{redact(self.expected, hidden)!r}"]
        if self.metadata:
            parts.append(f"metadata={redact(self.metadata, hidden)!r}")
        if self.state is not State.STATED:
            parts.append(str(self.state))
        if self.is_transient:
            parts.append("transient")
        return f"Evidence({', '.join(parts)})"

    def to_document(self) -> dict[str, Any]:
        """Return the claim as plain JSON; `from_document` returns an equal one."""
        return evidence.documents.encode_evidence(self)

    @classmethod
    def from_document(cls, document: Any) -> Evidence:
        """Return the claim of a document, also of an unknown kind or a newer form.

        Args:
            document: what `to_document` returned, possibly restored from JSON text.

        Raises:
            DecodingError: the document is not a claim.
        """
        return evidence.documents.decode_evidence(document)


_NONE: frozenset[str] = frozenset()


def _to_claims(value: Any) -> tuple[Evidence, ...]:
    if isinstance(value, Evidence):
        raise EvidenceError(f"a pack needs a list of claims, not {value!r:.80}", remedy="Put it into a list.")
    claims = tuple(value)
    for claim in claims:
        if not isinstance(claim, Evidence):
            raise EvidenceError(f"{claim!r:.80} in a pack is not an Evidence", remedy="Use flowckpt.evidence's claims.")
    return claims


def _check_flag(_: EvidencePack, field: attrs.Attribute[bool], value: object) -> None:
    if type(value) is not bool:
        raise EvidenceError(f"{field.name} is True or False, not {value!r:.80}", remedy="Write True or False.")


def _check_minimum(pack: EvidencePack, _: object, value: object) -> None:
    if type(value) is not int or value < 0:
        raise EvidenceError(f"min_verified is a number of claims, not {value!r:.80}", remedy="Write 0, 1, 2 …")
    if value > len(pack.evidence_list):
        raise EvidenceError(
            f"min_verified is {value}, but the pack has only {len(pack.evidence_list)} claims, so it could never hold",
            remedy="Add claims, or lower min_verified.",
        )


@lazy_frozen(eq=False, repr=False)
class EvidencePack(FieldEquality):
    """The claims of one step or checkpoint, and the policy that combines them.

    Attributes:
        evidence_list: the claims.
        require_all: whether every claim must hold, unless `allow_partial`.
        allow_partial: whether some claims may fail.
        min_verified: how many must hold if some may fail; at least one.
        extra: unknown fields of a newer version, kept.
    """

    evidence_list: Sequence[Evidence] = attrs.field(converter=_to_claims)
    require_all: bool = attrs.field(default=True, validator=_check_flag)
    allow_partial: bool = attrs.field(default=False, validator=_check_flag)
    min_verified: int = attrs.field(default=0, validator=_check_minimum)
    extra: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True)

    def __len__(self) -> int:
        return len(self.evidence_list)

    def __iter__(self) -> Iterator[Evidence]:
        return iter(self.evidence_list)

    def to_document(self) -> dict[str, Any]:
        """Return the pack as plain JSON; `from_document` returns an equal one."""
        return evidence.documents.encode_pack(self)

    @classmethod
    def from_document(cls, document: Any) -> EvidencePack:
        """Return the pack of a document.

        Args:
            document: what `to_document` returned, possibly restored from JSON text.

        Raises:
            DecodingError: the document is not a pack.
        """
        return evidence.documents.decode_pack(document)


# The name under which a function of the program is recorded: `module:qualname`.


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function, independent of how its file is run.

    Args:
        function: a function at the top level of a module, or in a class there.

    Raises:
        EvidenceError: the function has no importable name, so another process could not find it.
    """
    if not callable(function):
        raise EvidenceError(
            f"predicate() needs a function, got {function!r:.80}",
            evidence_type="predicate",
            remedy="Write the function first, then its arguments: predicate(is_open, 'Rome').",
        )
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or "<" in name:
        raise EvidenceError(
            f"{function!r:.80} is not a function with an importable name",
            evidence_type="predicate",
            remedy="Write it with 'def' at the top of a module: lambdas and inner functions have no lasting name.",
        )
    return f"{module_name(module)}:{name}"


# The functions that the program registers for claims.
#
# A record contains only a name. It is looked up here and nowhere else, and is never imported: the writer of a record
# cannot choose what code runs.


F = TypeVar("F", bound=Callable[..., Any])

_FUNCTIONS: dict[str, Callable[..., Any]] = {}


def register_predicate(function: F) -> F:
    """Allow claims to name a function; a decorator for programs that check claims without running the workflow.

    Args:
        function: returns True or False; sync or async.
    """
    _FUNCTIONS[function_name(function)] = function
    return function


def registered_predicate(name: str) -> Callable[..., Any] | None:
    """Return the function of a name, or None."""
    return _FUNCTIONS.get(name)


# The databases of the program, by name. A claim that uses such a name does not record a location. So the location may
# differ between machines, and a record cannot lead to a database that the program did not name.

_DATABASES: dict[str, str] = {}


def register_database(name: str, spec: str) -> None:
    """Give a database a name for `db_row` claims. `flowckpt` does this for the setting `databases`.

    Args:
        name: a plain word; claims without a database mean `main`.
        spec: `sqlite:FILE`, relative to the current directory, or `postgresql://user@host:port/database`.

    Raises:
        EvidenceError: the name or the specification is invalid, or the URL holds a password.
    """
    scheme, _, rest = spec.partition(":") if isinstance(spec, str) else ("", "", "")
    if not isinstance(name, str) or not name.isidentifier():
        raise EvidenceError(
            f"{name!r:.80} is not a name for a database", evidence_type="db_row", remedy="Use one word: 'main'."
        )
    if scheme == "sqlite" and rest and not rest.startswith("//"):  # some libraries take that as a relative path
        spec = f"sqlite:{Path(rest).absolute()}"
    elif scheme not in ("postgresql", "postgres"):
        raise EvidenceError(
            f"database {name!r}: {spec!r:.80} is not a specification of a database",
            evidence_type="db_row",
            remedy="Write sqlite:FILE or postgresql://user@host:port/database.",
        )
    elif has_credentials(spec) and ":" in spec.partition("://")[2].rpartition("@")[0]:
        raise EvidenceError(
            f"database {name!r}: the URL holds a password",
            evidence_type="db_row",
            remedy="Leave it to the environment: PGPASSWORD, or a password file (~/.pgpass, PGPASSFILE).",
        )
    _DATABASES[name] = spec


def registered_databases() -> dict[str, str]:
    """Return the specifications of the program's databases, by name."""
    return dict(_DATABASES)
