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
    denied_error,
    describe_change,
    failed_outcome,
    parse_path,
    parse_sha256,
    shorten_digest,
    uncaptured_outcome,
)
from flowckpt.evidence.claims import FOLLOWS_LINKS, Capture, Evidence, State
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
from flowckpt.evidence.sandbox import format_path, kind_of


class FileSha256(Check):
    """Checks that a file has the recorded content; in the mode `stat`, it may compare only the signature."""

    def verify(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Compare the digest, or the signature if that suffices."""
        path, wanted, captured = parse_path(claim), parse_sha256(claim), claim.captured
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
            raise _missing_error(claim) from None
        if found.sha256 == wanted:
            return VERIFIED_BY_HASH
        what = f"sha256 recorded {shorten_digest(wanted)}, found {shorten_digest(found.sha256)}{_describe_size(found, claim)}"
        message = f"{format_path(path)}: {what}{describe_change(found.status, captured)}"
        return failed_outcome(message, message, method="hash")

    def verify_uncaptured(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Fail if there is no file; otherwise there are no facts to compare."""
        _read_status(claim, context)
        return uncaptured_outcome(claim)

    def capture(self, claim: Evidence, context: CheckContext) -> Evidence:
        """Record the digest, unless the program gave it, and the signature of the read file."""
        path = parse_path(claim)
        wanted = parse_sha256(claim) if claim.state is State.STATED else None
        try:
            found = digest_file(path, context)
        except (FileNotFoundError, NotADirectoryError):
            raise _missing_error(claim) from None
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


def _read_status(claim: Evidence, context: CheckContext) -> os.stat_result:
    try:
        return context.sandbox.status(parse_path(claim))
    except (FileNotFoundError, NotADirectoryError):
        raise _missing_error(claim) from None


def _missing_error(claim: Evidence) -> EvidenceCaptureError:
    return denied_error(claim, f"{format_path(parse_path(claim))} does not exist")


def _describe_size(found: FileDigest, claim: Evidence) -> str:
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
        found = _check_status(claim, context)
        recorded = claim.captured.facts.get("size") if claim.captured else None
        if type(recorded) is int and stat.S_ISREG(found.st_mode) and found.st_size < recorded:
            path = format_path(parse_path(claim))
            message = (
                f"{path}: {recorded} bytes recorded, only {found.st_size} found{describe_change(found, claim.captured)}"
            )
            return failed_outcome(message, message)
        return VERIFIED

    def verify_uncaptured(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Look up the path; for a step in doubt, a file may be partially written, which proves nothing."""
        _check_status(claim, context)
        return uncaptured_outcome(claim) if context.settings.moment is Moment.IN_DOUBT else VERIFIED

    def capture(self, claim: Evidence, context: CheckContext) -> Evidence:
        """Record the size of a file."""
        found = _check_status(claim, context)
        facts = {"size": found.st_size} if stat.S_ISREG(found.st_mode) else {}
        return attrs.evolve(claim, state=State.CAPTURED, captured=Capture(context.clock.now(), None, facts))


def _check_status(claim: Evidence, context: CheckContext) -> os.stat_result:
    wanted = claim.expected.get("type", "any")
    if wanted not in _TYPES:
        raise MalformedClaimError(f"'type' is {wanted!r:.80}", remedy=f"Write one of {', '.join(_TYPES)}.")
    return _check_kind(claim, context, wanted)


def _check_kind(claim: Evidence, context: CheckContext, wanted: str) -> os.stat_result:
    """Return the status of a path of the wanted kind."""
    found = _read_status(claim, context)
    is_wanted = {"any": True, "file": stat.S_ISREG(found.st_mode), "directory": stat.S_ISDIR(found.st_mode)}
    if not is_wanted[wanted]:
        raise denied_error(claim, f"{format_path(parse_path(claim))} is {kind_of(found)}, not a {wanted}")
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
        path, wanted, captured = parse_path(claim), _read_digest(claim), claim.captured
        deadline = context.deadline_after(context.settings.limits.hash_seconds)
        facts = captured.facts if captured else {}
        entries = _list_entries(claim, context, deadline)
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
        details = _describe_differences(path, entries, contents, captured)
        hexes = wanted.removeprefix(FORM), found.removeprefix(FORM)
        message = f"{format_path(path)}: digest recorded {shorten_digest(hexes[0])}, found {shorten_digest(hexes[1])}"
        return failed_outcome(f"{message}; {len(entries)} entries", *(details or [message]), method="hash")

    def verify_uncaptured(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Fail if there is no directory; otherwise there are no facts to compare."""
        _check_kind(claim, context, "directory")
        return uncaptured_outcome(claim)

    def capture(self, claim: Evidence, context: CheckContext) -> Evidence:
        """Record the digest, unless the program gave it, with the contents of a small tree, and the signatures."""
        path = parse_path(claim)
        given = _read_digest(claim) if claim.state is State.STATED else None
        deadline = context.deadline_after(context.settings.limits.hash_seconds)
        entries = _list_entries(claim, context, deadline)
        contents = file_digests(path, entries, context, deadline)
        digest = content_digest(entries, contents)
        if given is not None and given != digest:
            return claim  # the verdict reports it
        now = context.clock.now()
        facts: dict[str, Any] = {"digest": digest, "entries": len(entries)}
        if all(is_signature_reliable(entry.status, now) for entry in entries):
            facts["stat_digest"] = stat_digest(entries)
        if len(entries) <= MOST_RECORDED:
            facts["contents"] = _name_contents(entries, contents)
        return attrs.evolve(
            claim,
            expected={**claim.expected, "digest": digest},
            state=claim.state if given else State.CAPTURED,
            captured=Capture(now, None, facts),
        )


def _read_digest(claim: Evidence) -> str:
    value = claim.expected.get("digest")
    match = _DIGEST.fullmatch(value) if type(value) is str else None
    if match is None:
        raise MalformedClaimError(
            f"'digest' is {value!r:.80}, not the digest of a tree", remedy=f"Write '{FORM}' and 64 hex digits."
        )
    return FORM + match[1].lower()


def _list_entries(claim: Evidence, context: CheckContext, deadline: Deadline) -> list[TreeEntry]:
    _check_kind(claim, context, "directory")
    try:
        follows_links = claim.expected.get(FOLLOWS_LINKS) is True
        return list_tree(parse_path(claim), context, deadline, follows_links=follows_links)
    except (FileNotFoundError, NotADirectoryError):  # removed meanwhile
        raise _missing_error(claim) from None


def _name_contents(entries: Sequence[TreeEntry], contents: Sequence[str]) -> dict[str, str]:
    return {
        os.fsdecode(entry.path): content if entry.is_file else f"→ {os.fsdecode(entry.target)}" * bool(entry.target)
        for entry, content in zip(entries, contents, strict=True)
    }


def _describe_differences(
    path: str, entries: Sequence[TreeEntry], contents: Sequence[str], captured: Capture | None
) -> list[str]:
    """Return which entries differ; if contents were not recorded, which were changed since."""
    if captured is None:
        return []
    by_path = {os.fsdecode(entry.path): entry for entry in entries}
    recorded = captured.facts.get("contents")
    found = _name_contents(entries, contents)
    lines: list[str] = []
    if isinstance(recorded, Mapping):
        for name in sorted({*recorded, *found}):
            where = format_path(f"{path}/{name}")
            if name not in found:
                lines.append(f"{where} is missing")
            elif name not in recorded:
                lines.append(f"{where} is new{describe_change(by_path[name].status, captured)}")
            elif recorded[name] != found[name]:
                what = f"recorded {_format_content(recorded[name])}, found {_format_content(found[name])}"
                lines.append(f"{where}: {what}{describe_change(by_path[name].status, captured)}")
    else:
        for name, entry in by_path.items():
            if entry.is_file and (when := describe_change(entry.status, captured)):
                lines.append(f"{format_path(f'{path}/{name}')}{when.replace(';', ' was', 1)}")
    if len(lines) > MOST_SHOWN:
        lines[MOST_SHOWN:] = [f"… and {len(lines) - MOST_SHOWN} more"]
    return lines


def _format_content(content: object) -> str:
    text = str(content)
    if text.startswith("→"):
        return f"a link to {format_path(text[2:])}"
    return f"sha256 {shorten_digest(text)}" if text else "a directory"
