"""The checks of files: `file_sha256`, `artifact_exists` and `directory_digest`."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from flowckpt.errors import EvidenceCaptureError
from flowckpt.evidence.checks.base import (
    VERIFIED,
    VERIFIED_BY_HASH,
    VERIFIED_BY_STAT,
    Check,
    CheckContext,
    Deadline,
    MalformedClaimError,
    Mode,
    Outcome,
    denied,
    failed,
    path_in,
    sha256_in,
    short,
    uncaptured,
    when_changed,
)
from flowckpt.evidence.claims import Capture, Evidence, State
from flowckpt.evidence.digests import (
    FORM,
    FileDigest,
    TreeEntry,
    content_digest,
    digest_file,
    file_digests,
    is_signature_reliable,
    list_tree,
    signature_of,
    stat_digest,
)
from flowckpt.evidence.report import Moment
from flowckpt.evidence.sandbox import kind_of, shown_path


class FileSha256(Check):
    """Checks that a file has the recorded content; in the mode `stat`, it may compare only the signature."""

    def verify(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Compare the digest, or the signature if that suffices."""
        path, wanted, captured = path_in(claim), sha256_in(claim), claim.captured
        try:
            if (
                context.settings.mode is Mode.STAT
                and captured is not None
                and captured.signature is not None
                and captured.facts.get("sha256") == wanted  # the signature belongs to this content
                and signature_of(context.sandbox.status(path)) == captured.signature
            ):
                return VERIFIED_BY_STAT
            found = digest_file(path, context)
        except (FileNotFoundError, NotADirectoryError):
            raise _missing(claim) from None
        if found.sha256 == wanted:
            return VERIFIED_BY_HASH
        what = f"sha256 recorded {short(wanted)}, found {short(found.sha256)}{_size(found, claim)}"
        said = f"{shown_path(path)}: {what}{when_changed(found.status, captured)}"
        return failed(said, said, method="hash")

    def verify_uncaptured(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Fail if there is no file; otherwise there are no facts to compare."""
        _status(claim, context)
        return uncaptured(claim)

    def capture(self, claim: Evidence, context: CheckContext) -> Evidence:
        """Record the digest, unless the program gave it, and the signature of the read file."""
        path = path_in(claim)
        wanted = sha256_in(claim) if claim.state is State.STATED else None
        try:
            found = digest_file(path, context)
        except (FileNotFoundError, NotADirectoryError):
            raise _missing(claim) from None
        if wanted is not None and found.sha256 != wanted:
            return claim  # the verdict reports it; a signature of other content must not be recorded
        now = context.clock.now()
        signature = signature_of(found.status) if is_signature_reliable(found.status, now) else None
        return attrs.evolve(
            claim,
            expected={**claim.expected, "sha256": wanted or found.sha256},
            state=claim.state if wanted else State.CAPTURED,
            captured=Capture(now, signature, {"sha256": found.sha256, "size": found.status.st_size}),
        )


def _status(claim: Evidence, context: CheckContext) -> os.stat_result:
    try:
        return context.sandbox.status(path_in(claim))
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(claim) from None


def _missing(claim: Evidence) -> EvidenceCaptureError:
    return denied(claim, f"{shown_path(path_in(claim))} does not exist")


def _size(found: FileDigest, claim: Evidence) -> str:
    recorded = claim.captured.facts.get("size") if claim.captured else None
    if type(recorded) is not int or recorded == found.status.st_size:
        return ""
    return f"; {found.status.st_size} bytes, were {recorded}"


# `artifact_exists`: a file or directory exists.
#
# A captured file must not have become smaller: a partially written file also exists.


_TYPES = ("file", "directory", "any")


class ArtifactExists(Check):
    """Checks that a path exists, without reading the file."""

    def verify(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Look up the path, following links inside the base path."""
        found = _checked_status(claim, context)
        recorded = claim.captured.facts.get("size") if claim.captured else None
        if type(recorded) is int and stat.S_ISREG(found.st_mode) and found.st_size < recorded:
            path = shown_path(path_in(claim))
            said = f"{path}: {recorded} bytes recorded, only {found.st_size} found{when_changed(found, claim.captured)}"
            return failed(said, said)
        return VERIFIED

    def verify_uncaptured(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Look up the path; for a step in doubt, a file may be partially written, which proves nothing."""
        _checked_status(claim, context)
        return uncaptured(claim) if context.settings.moment is Moment.IN_DOUBT else VERIFIED

    def capture(self, claim: Evidence, context: CheckContext) -> Evidence:
        """Record the size of a file."""
        found = _checked_status(claim, context)
        facts = {"size": found.st_size} if stat.S_ISREG(found.st_mode) else {}
        return attrs.evolve(claim, state=State.CAPTURED, captured=Capture(context.clock.now(), None, facts))


def _checked_status(claim: Evidence, context: CheckContext) -> os.stat_result:
    wanted = claim.expected.get("type", "any")
    if wanted not in _TYPES:
        raise MalformedClaimError(f"'type' is {wanted!r:.80}", remedy=f"Write one of {', '.join(_TYPES)}.")
    found = _status(claim, context)
    is_wanted = {"any": True, "file": stat.S_ISREG(found.st_mode), "directory": stat.S_ISDIR(found.st_mode)}
    if not is_wanted[wanted]:
        raise denied(claim, f"{shown_path(path_in(claim))} is {kind_of(found)}, not a {wanted}")
    return found


# `directory_digest`: a tree has the recorded names and contents.


MOST_RECORDED = 1_000
MOST_SHOWN = 10

_DIGEST = re.compile(r"(?:sha256:tree:v1:)?([0-9a-fA-F]{64})")


class DirectoryDigest(Check):
    """Checks the content of a tree; in the mode `stat`, it may compare only the signatures."""

    splits_work = True

    def verify(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Compare the digest, or the signatures if those suffice."""
        path, wanted, captured = path_in(claim), _wanted(claim), claim.captured
        deadline = context.deadline_after(context.settings.limits.hash_seconds)
        facts = captured.facts if captured else {}
        entries = _entries(claim, context, deadline)
        if (
            context.settings.mode is Mode.STAT
            and facts.get("digest") == wanted
            and facts.get("stat_digest") is not None
            and facts["stat_digest"] == stat_digest(entries)
        ):
            return VERIFIED_BY_STAT
        contents = file_digests(path, entries, context, deadline)
        found = content_digest(entries, contents)
        if found == wanted:
            return VERIFIED_BY_HASH
        details = _differences(path, entries, contents, captured)
        hexes = wanted.removeprefix(FORM), found.removeprefix(FORM)
        said = f"{shown_path(path)}: digest recorded {short(hexes[0])}, found {short(hexes[1])}"
        return failed(f"{said}; {len(entries)} entries", *(details or [said]), method="hash")

    def verify_uncaptured(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Fail if there is no directory; otherwise there are no facts to compare."""
        _check_directory(claim, context)
        return uncaptured(claim)

    def capture(self, claim: Evidence, context: CheckContext) -> Evidence:
        """Record the digest, unless the program gave it, with the contents of a small tree, and the signatures."""
        path = path_in(claim)
        given = _wanted(claim) if claim.state is State.STATED else None
        deadline = context.deadline_after(context.settings.limits.hash_seconds)
        entries = _entries(claim, context, deadline)
        contents = file_digests(path, entries, context, deadline)
        digest = content_digest(entries, contents)
        if given is not None and given != digest:
            return claim  # the verdict reports it
        now = context.clock.now()
        facts: dict[str, Any] = {"digest": digest, "entries": len(entries)}
        if all(is_signature_reliable(entry.status, now) for entry in entries):
            facts["stat_digest"] = stat_digest(entries)
        if len(entries) <= MOST_RECORDED:
            facts["contents"] = _contents(entries, contents)
        return attrs.evolve(
            claim,
            expected={**claim.expected, "digest": digest},
            state=claim.state if given else State.CAPTURED,
            captured=Capture(now, None, facts),
        )


def _wanted(claim: Evidence) -> str:
    value = claim.expected.get("digest")
    match = _DIGEST.fullmatch(value) if type(value) is str else None
    if match is None:
        raise MalformedClaimError(
            f"'digest' is {value!r:.80}, not the digest of a tree", remedy=f"Write '{FORM}' and 64 hex digits."
        )
    return FORM + match[1].lower()


def _entries(claim: Evidence, context: CheckContext, deadline: Deadline) -> list[TreeEntry]:
    _check_directory(claim, context)
    try:
        return list_tree(path_in(claim), context, deadline)
    except (FileNotFoundError, NotADirectoryError):  # removed meanwhile
        raise _missing(claim) from None


def _check_directory(claim: Evidence, context: CheckContext) -> None:
    found = _status(claim, context)
    if not stat.S_ISDIR(found.st_mode):
        raise denied(claim, f"{shown_path(path_in(claim))} is {kind_of(found)}, not a directory")


def _contents(entries: Sequence[TreeEntry], contents: Sequence[str]) -> dict[str, str]:
    return {
        os.fsdecode(entry.path): content if entry.is_file else f"→ {os.fsdecode(entry.target)}" * bool(entry.target)
        for entry, content in zip(entries, contents, strict=True)
    }


def _differences(
    path: str, entries: Sequence[TreeEntry], contents: Sequence[str], captured: Capture | None
) -> list[str]:
    """Return which entries differ; if contents were not recorded, which were changed since."""
    if captured is None:
        return []
    by_path = {os.fsdecode(entry.path): entry for entry in entries}
    recorded = captured.facts.get("contents")
    found = _contents(entries, contents)
    said: list[str] = []
    if isinstance(recorded, Mapping):
        for name in sorted({*recorded, *found}):
            where = shown_path(f"{path}/{name}")
            if name not in found:
                said.append(f"{where} is missing")
            elif name not in recorded:
                said.append(f"{where} is new{when_changed(by_path[name].status, captured)}")
            elif recorded[name] != found[name]:
                what = f"recorded {_shown(recorded[name])}, found {_shown(found[name])}"
                said.append(f"{where}: {what}{when_changed(by_path[name].status, captured)}")
    else:
        for name, entry in by_path.items():
            if entry.is_file and (when := when_changed(entry.status, captured)):
                said.append(f"{shown_path(f'{path}/{name}')}{when.replace(';', ' was', 1)}")
    if len(said) > MOST_SHOWN:
        said[MOST_SHOWN:] = [f"… and {len(said) - MOST_SHOWN} more"]
    return said


def _shown(content: object) -> str:
    text = str(content)
    if text.startswith("→"):
        return f"a link to {shown_path(text[2:])}"
    return f"sha256 {short(text)}" if text else "a directory"
