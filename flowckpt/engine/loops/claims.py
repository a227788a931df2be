"""The evidence of a task's steps, and the files that are kept with their state.

Evidence is captured at the commit, recorded as in a run of the engine, and checked again later. Files and directories
are kept once per content, and restored by a rollback.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flowckpt.core.codec.blob import pack_value
from flowckpt.core.codec.tags import encode
from flowckpt.core.records import PartialState
from flowckpt.core.system.clock import Clock
from flowckpt.core.system.ids import new_token
from flowckpt.errors import EvidenceCaptureError, EvidenceError, SettingError, StaleStepError
from flowckpt.evidence.claims import EvidencePack, State
from flowckpt.evidence.report import Moment, PackOutcome, VerificationReport
from flowckpt.evidence.verifier import EvidenceVerifier
from flowckpt.execution.claims import ClaimChecker, evidence_error, list_failures
from flowckpt.maintenance.task_log import CommittedStep, TaskLog


class TaskClaims:
    """How the evidence of a manager's tasks is checked.

    Args:
        verifier: checks the evidence; None for one based on the directory of the manager or the task.
        base_path: where relative paths start; None for the directory in which the task was started.
        clock: the time.
        is_automatic: whether evidence is also checked at commits and restores.

    Attributes:
        is_automatic: whether evidence is also checked at commits and restores.
    """

    def __init__(
        self, verifier: EvidenceVerifier | None, base_path: str | None, clock: Clock, *, is_automatic: bool
    ) -> None:
        self.is_automatic = is_automatic
        self._verifier = verifier
        self._base_path = base_path
        self._here = str(Path.cwd())  # a program may change its directory between two steps
        self._clock = clock

    def find_base(self, log: TaskLog) -> str:
        """Return the directory where a task's relative paths start."""
        if self._verifier is not None:
            return log.base_path
        return self._base_path or log.base_path or self._here

    def find_files_base(self, log: TaskLog) -> str:
        """Return the directory in which files are restored: never one that is only given by the record.

        Raises:
            SettingError: the task was started in another directory.
        """
        own = self._base_path or (self._here if self._verifier is None else self._verifier.base_path)
        if log.base_path and Path(log.base_path) != Path(own):
            raise SettingError(
                f"task {log.task_id!r} keeps files below {log.base_path}, but this manager works in {own}",
                setting="base_path",
                remedy=f"Pass CheckpointManager(base_path={log.base_path!r}).",
            )
        return own

    def _make_verifier(self, log: TaskLog) -> EvidenceVerifier:
        # As in the engine: a program's own claims may have paths anywhere; only relative paths must stay below the
        # base.
        return self._verifier or EvidenceVerifier(self.find_base(log), allow_absolute=True, clock=self._clock)

    async def commit_claims(
        self,
        log: TaskLog,
        pack: EvidencePack | None,
        path: str,
        *,
        exit_code: int | None = None,
        on_refusal: Callable[[VerificationReport], Awaitable[None]],
    ) -> Mapping[str, Any] | None:
        """Capture the facts of a step's claims, and check them.

        Args:
            log: the task.
            pack: the claims, or None.
            path: the step.
            exit_code: the exit code of the command that the step ran; None if it ran none.
            on_refusal: called with the report if the claims do not hold.

        Returns:
            The document to record, with the claims, their facts and the verdicts; None if there is nothing to check.

        Raises:
            EvidenceError: `pack` is not an EvidencePack.
            EvidenceNotVerifiedError: the claims do not hold, or cannot be checked.
        """
        if pack is not None and not isinstance(pack, EvidencePack):
            raise EvidenceError(
                f"{path}: the evidence of a step is an EvidencePack or None, not {pack!r:.80}",
                remedy="Write EvidencePack([…]).",
            )
        if pack is None or not len(pack):
            return None
        if not self.is_automatic:
            document: dict[str, Any] = {"pack": (await _capture_facts(self._make_verifier(log), pack)).to_document()}
            return document if exit_code is None else {**document, "exit_code": exit_code}
        made = await ClaimChecker(self._make_verifier(log)).commit(pack, path=path, exit_code=exit_code)
        if not made.report:
            await on_refusal(made.report)
            raise evidence_error(path, made.report)
        return made.document

    async def check_step(self, log: TaskLog, step: CommittedStep) -> VerificationReport:
        """Check the recorded claims of a step now."""
        return (await self.verify_results(log, [step]))[0]

    async def verify_results(self, log: TaskLog, steps: Sequence[CommittedStep]) -> list[VerificationReport]:
        """Check the recorded claims of many steps now, in one call."""
        packs = [(step.evidence_pack, step.facts) for step in steps]
        return await self._make_verifier(log).verify_packs(packs, moment=Moment.RESUME)

    async def refuse_stale(self, log: TaskLog, index: int) -> None:
        """Refuse a step if its claims, or those of an earlier step, no longer hold.

        A step without claims stays valid.

        Raises:
            StaleStepError: claims do not hold or cannot be checked; the error names all these steps.
        """
        steps = _select_claimed(log.live_chain(index))[::-1]
        reports = await self.verify_results(log, steps)
        stale = {
            step.path: [f"evidence: {each}" for each in (list_failures(report) or (report.reason,))]
            for step, report in zip(steps, reports, strict=True)
            if not _may_stay(report)
        }
        if not stale:
            return
        (path, reasons), *others = stale.items()
        raise StaleStepError(
            log.task_id,
            path,
            reasons=reasons,
            others=dict(others),
            is_proved=any(report.outcome == "failed" for report in reports),
            remedy="Restore the files or data that changed; or roll back to the checkpoint of get_last_verified_checkpoint, "
            "with rollback_to_checkpoint.",
        )

    async def find_newest_valid(self, log: TaskLog, checkpoint_type: str | None) -> CommittedStep | None:
        """Return the newest step from which a task can continue: its claims and those of all earlier steps hold now.

        Args:
            log: the task.
            checkpoint_type: the kind of step; None for any.
        """
        steps = _select_claimed(log.live_chain(log.head))[::-1]
        newest = None
        for step, report in zip(steps, await self.verify_results(log, steps), strict=True):
            if not _may_stay(report):
                break
            if report.verified and checkpoint_type in (None, step.checkpoint_type):
                newest = step
        return newest

    async def find_newest_verified(self, log: TaskLog, steps: Sequence[CommittedStep]) -> CommittedStep | None:
        """Return the first of some steps that has claims, and whose claims hold now."""
        for step in steps:
            if step.has_claims and (await self.check_step(log, step)).verified:
                return step
        return None


def _select_claimed(steps: Sequence[CommittedStep]) -> list[CommittedStep]:
    return [step for step in steps if step.has_claims]


def _may_stay(report: VerificationReport) -> bool:
    return report.outcome in (PackOutcome.VERIFIED, PackOutcome.NO_EVIDENCE)


async def _capture_facts(verifier: EvidenceVerifier, pack: EvidencePack) -> EvidencePack:
    """Return a pack with the facts that could be captured; a claim without facts is never verified later."""
    claims = []
    for claim in pack:
        try:
            claims.append(await verifier.capture(claim) if claim.state is State.UNCAPTURED else claim)
        except EvidenceCaptureError:
            claims.append(claim)
    return EvidencePack(claims, pack.require_all, pack.allow_partial, pack.min_verified, extra=pack.extra)


Files = Mapping[str, PartialState]
"""Captured files, by path below the base."""


def capture(base: str, paths: Iterable[str | os.PathLike[str]]) -> Files:
    """Return the contents of files and directories, including the fact that a path does not exist.

    Args:
        base: the directory where relative paths start; no path may leave it.
        paths: files and directories.

    Raises:
        SettingError: a path leaves the base, or is neither a file, a directory nor a link.
        OSError: something cannot be read.
    """
    if isinstance(paths, str | bytes | os.PathLike):
        raise SettingError(f"files is a list of paths, not {paths!r:.80}", setting="files", remedy="Use a list.")
    entries: dict[str, Any] = {}
    for path in paths:
        _capture_entry(Path(base), _relative_name(base, path), entries)
    return {name: PartialState(pack_value(encode(entry, "files"))) for name, entry in entries.items()}


def _relative_name(base: str, path: object) -> str:
    if isinstance(path, str | os.PathLike) and (text := os.fspath(path)) and isinstance(text, str):
        name = os.path.relpath(os.path.join(base, text), base)  # noqa: PTH118 - an absolute path stays as it is
        if name != os.curdir and name.partition(os.sep)[0] != os.pardir:
            _check_parents(Path(base), name)
            return name
    raise SettingError(
        f"{path!r:.200} is not a path below {base}",
        setting="files",
        remedy="Pass paths below the manager's base_path: only these can be put back.",
    )


def _check_parents(base: Path, name: str) -> None:
    """Refuse a path that leaves the base through a link."""
    parent = (base / name).parent
    if not parent.resolve().is_relative_to(base.resolve()):
        raise SettingError(f"{name!r:.200} is not below {base}: a link leads out of it", setting="files")


def _capture_entry(base: Path, name: str, entries: dict[str, Any]) -> None:
    path = base / name
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        entries[name] = {"kind": "absent"}
        return
    if stat.S_ISLNK(status.st_mode):
        entries[name] = {"kind": "link", "target": str(path.readlink())}
    elif stat.S_ISREG(status.st_mode):
        entries[name] = {"kind": "file", "mode": stat.S_IMODE(status.st_mode), "content": path.read_bytes()}
    elif stat.S_ISDIR(status.st_mode):
        names = sorted(each.name for each in path.iterdir())
        entries[name] = {"kind": "directory", "mode": stat.S_IMODE(status.st_mode), "names": names}
        for each in names:
            _capture_entry(base, os.path.join(name, each), entries)  # noqa: PTH118 - names, not paths
    else:
        raise SettingError(f"{name!r:.200} is neither a file, a directory nor a link", setting="files")


def find_roots(files: Files) -> list[str]:
    """Return the paths that are not below another one."""
    return [name for name in files if not any(str(parent) in files for parent in Path(name).parents)]


def restore_files(base: str, files: Files) -> None:
    """Restore files and directories; files that a directory did not contain are removed.

    Args:
        base: the directory where the paths start.
        files: the captured files.

    Raises:
        SettingError: a recorded path leaves the base.
        OSError: something cannot be written.
    """
    for name in sorted(files):  # a directory before what is in it
        if _relative_name(base, name) != name:
            raise SettingError(f"{name!r:.200} is not a path below {base}", setting="files")
        entry, path = files[name].state, Path(base, name)
        if entry["kind"] == "directory":
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                path.unlink()
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(entry["mode"])
            for each in path.iterdir():
                if each.name not in entry["names"]:
                    _remove(each)
            continue
        if entry["kind"] == "file" and _is_same(path, entry):
            continue
        if path.is_dir() or entry["kind"] == "absent":
            _remove(path)
        if entry["kind"] != "absent":
            _replace(path, entry)


def _is_same(path: Path, entry: Mapping[str, Any]) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    status = path.stat()
    is_alike = stat.S_IMODE(status.st_mode) == entry["mode"] and status.st_size == len(entry["content"])
    return is_alike and path.read_bytes() == entry["content"]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _replace(path: Path, entry: Mapping[str, Any]) -> None:
    """Write a temporary file and rename it, so that readers never see a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name[:100]}.{new_token(8)}")
    try:
        if entry["kind"] == "link":
            beside.symlink_to(entry["target"])
        else:
            with beside.open("xb") as file:
                file.write(entry["content"])
                os.fchmod(file.fileno(), entry["mode"])
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
