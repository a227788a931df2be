"""The files that the steps of a run read and write: the writer of each file, and the claims.

A result that depends on a file can only be reused if the file depends only on its own writer. So a file has one writer
in a run, and no step reads a file before the step that writes it, or in parallel with it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from flowckpt.core.dsl.modifiers import list_declared_files
from flowckpt.core.dsl.step import Step
from flowckpt.core.records import StepResult
from flowckpt.errors import StepFilesError
from flowckpt.evidence.claims import Evidence, EvidencePack
from flowckpt.evidence.constructors import make_file_claim
from flowckpt.evidence.report import VerdictStatus, VerificationReport
from flowckpt.evidence.verifier import EvidenceVerifier
from flowckpt.execution.claims import READS, WRITES, recorded_paths


@attrs.define(eq=False, repr=False)
class RunFiles:
    """Which step of a run reads and writes which file.

    Attributes:
        read: the recorded facts of the files that running steps read, by step.
    """

    read: dict[str, list[Evidence]] = attrs.field(factory=dict)
    _ready: set[str] = attrs.field(factory=set)
    _writer: dict[str, str] = attrs.field(factory=dict)
    _readers: dict[str, set[str]] = attrs.field(factory=dict)
    _below: dict[str, set[str]] = attrs.field(factory=dict)

    async def open(self, verifier: EvidenceVerifier, step: Step[Any], path: str) -> None:
        """Record the files that a step reads, right before it starts; do nothing if `open_ahead` has just done so.

        Raises:
            StepFilesError: a file is missing, or belongs to another step.
            StepDefinitionError: a function did not return paths.
        """
        if path in self._ready:
            self._ready.remove(path)
            return
        reads, writes = list_declared_files(step, READS), list_declared_files(step, WRITES)
        base = verifier.base_path
        reading, writing = _resolve_paths(base, reads, is_read=True), _resolve_paths(base, writes, is_read=False)
        self._register(path, reading, writing)
        claims = [_make_claim(verifier, each, READS) for each in reads]
        if not claims:
            return
        recorded, report = await verifier.commit(EvidencePack(claims))
        wrong = [verdict for verdict in report.verdicts if verdict.is_against]
        if wrong:
            remedy = "Create the file, or correct the path: a step starts only if all files that it reads exist."
            if wrong[0].status is VerdictStatus.REFUSED:
                remedy = ""  # the verdict has its own
            raise _files_error(path, f"a file that it reads cannot be read: {wrong[0].error}", remedy)
        self.read[path] = list(recorded)

    async def open_ahead(self, verifier: EvidenceVerifier, step: Step[Any], path: str) -> None:
        """Record the files that a step reads, before its start is made durable.

        Raises:
            StepFilesError: a file is missing, or belongs to another step.
            StepDefinitionError: a function did not return paths.
        """
        self._ready.discard(path)
        await self.open(verifier, step, path)
        self._ready.add(path)

    def claim_writes(self, verifier: EvidenceVerifier, step: Step[Any]) -> list[Evidence]:
        """Return the claims of the files that a step writes, to be captured when it has ended."""
        return [_make_claim(verifier, each, WRITES) for each in list_declared_files(step, WRITES)]

    async def verify_unchanged(self, verifier: EvidenceVerifier, path: str) -> VerificationReport | None:
        """Return whether the files that a step reads are unchanged after it; None if it reads none.

        Raises:
            StepFilesError: a file changed while the step ran.
        """
        read = self.read.get(path)
        if not read:
            return None
        report = await verifier.changed(mode="stat").verify_evidence_pack(EvidencePack(read))
        wrong = [verdict for verdict in report.verdicts if verdict.is_against]
        if wrong:
            detail = f"{wrong[0].evidence.expected['path']}, which it reads, changed while it ran: {wrong[0].error}"
            remedy = "Have the step write to other files than it reads, and do not change its files while it runs."
            raise _files_error(path, detail, remedy)
        return report

    def register_restored(self, base: str, result: StepResult) -> bool:
        """Register the files of a reused result; return False if one of them now belongs to another step."""
        try:
            reads, writes = recorded_paths(result, READS), recorded_paths(result, WRITES)
            # As spelled: links may lead elsewhere now than when the step ran.
            self._register(result.path, _spell_paths(base, reads), _spell_paths(base, writes))
        except StepFilesError:
            return False
        return True

    def release(self, path: str) -> None:
        """Forget the files of a failed step: another step may write them."""
        self.read.pop(path, None)
        self._ready.discard(path)
        for file in [file for file, writer in self._writer.items() if writer == path]:
            del self._writer[file]
        for readers in self._readers.values():
            readers.discard(path)

    def _register(self, path: str, reading: Mapping[str, str], writing: Mapping[str, str]) -> None:
        for file, name in writing.items():
            if any(_overlap(file, each) for each in reading):
                raise _files_error(path, f"it reads and writes {name}", "Write to another file than it reads.")
            for other in self._list_related(file):
                if self._writer.get(other, path) != path:
                    detail = f"it writes {name}, which step {self._writer[other]!r} writes, too"
                    raise _files_error(path, detail, "Give each step files of its own: a file has one writer in a run.")
                if reader := next((each for each in sorted(self._readers.get(other, ())) if each != path), None):
                    detail = f"it writes {name}, which step {reader!r} has read"
                    raise _files_error(path, detail, "Write to another file, or yield the step that reads it later.")
        for file, name in reading.items():
            for other in self._list_related(file):
                writer = self._writer.get(other, path)
                if _are_parallel(writer, path):
                    detail = f"it reads {name}, which step {writer!r} writes, and the two may run in parallel"
                    raise _files_error(path, detail, "Yield a separate step that runs first.")
        for file in writing:
            self._writer[file] = path
        for file in reading:
            self._readers.setdefault(file, set()).add(path)
        for file in (*reading, *writing):
            for parent in Path(file).parents:
                self._below.setdefault(str(parent), set()).add(file)

    def _list_related(self, file: str) -> list[str]:
        """Return the known files that are equal to this one, below it, or above it."""
        return [file, *map(str, Path(file).parents), *sorted(self._below.get(file, ()))]


def _make_claim(verifier: EvidenceVerifier, path: str, role: str) -> Evidence:
    return make_file_claim(path, role, is_directory=Path(verifier.base_path, path).is_dir())


def _spell_paths(base: str, paths: Sequence[str]) -> dict[str, str]:
    return {os.path.normpath(Path(base, each)): each for each in paths}


def _resolve_paths(base: str, paths: Sequence[str], *, is_read: bool) -> dict[str, str]:
    """Return paths by their places: as spelled, and through the links on the way.

    A step that writes may replace a link itself, so only a path that is read is followed to its end.
    """
    places = _spell_paths(base, paths)
    for file, each in [*places.items()]:
        parent, name = os.path.split(file)
        with contextlib.suppress(ValueError):  # NUL: the check of the file reports it
            places[str(Path(os.path.realpath(parent), name))] = each
            if is_read:
                places[os.path.realpath(file)] = each
    return places


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}{os.sep}") or other.startswith(f"{one}{os.sep}")


def _are_parallel(one: str, other: str) -> bool:
    """Return whether two steps are in different members of the same map or group."""
    for mine, theirs in zip(one.split("/"), other.split("/"), strict=False):
        if mine != theirs:
            return mine.startswith("[") and theirs.startswith("[")
    return False


def _files_error(path: str, detail: str, remedy: str) -> StepFilesError:
    return StepFilesError(path, detail=detail, remedy=remedy)
