"""The verifier of a run: the engine's own, or one that looks where the run was started; made when a claim asks for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowckpt.core.dsl import Step
from flowckpt.core.records import CheckpointData, StepResult
from flowckpt.core.system.lazy import LazyModule
from flowckpt.engine.values.options import RunOptions
from flowckpt.execution.runner import restored_value

if TYPE_CHECKING:
    from flowckpt.evidence import report as verdict
    from flowckpt.evidence import verifier as verifiers
    from flowckpt.evidence.report import VerificationReport
    from flowckpt.evidence.verifier import EvidenceVerifier
    from flowckpt.execution import claims
else:
    verdict = LazyModule("flowckpt.evidence.report")
    verifiers = LazyModule("flowckpt.evidence.verifier")
    claims = LazyModule("flowckpt.execution.claims")


class Verifying:
    """Holds the verifier of one run.

    Args:
        given: the engine's verifier, or None for one that takes relative paths from where the run was started.
        mode: `hash` or `stat`, or None for the verifier's own.
        base_path: where the run was started; left out where that is not known, or is no more.
        allow_network: hosts that network claims may reach, where no verifier is given.
    """

    def __init__(
        self,
        given: EvidenceVerifier | None,
        mode: str | None,
        base_path: str = "",
        allow_network: Sequence[str] = (),
    ) -> None:
        self._made: EvidenceVerifier | None = None
        self._given = given
        self._mode = mode
        self._base_path = base_path
        self._allow_network = allow_network

    def __call__(self) -> EvidenceVerifier:
        """Return the verifier."""
        if self._made is None:
            made = self._given
            if made is None:
                base = self._base_path
                # What the program itself claims may lie anywhere; only a relative path is held to the base.
                made = verifiers.EvidenceVerifier(
                    base if base and Path(base).is_dir() else ".",
                    allow_absolute=True,
                    allow_network=self._allow_network,
                )
            self._made = made if self._mode is None else made.changed(mode=self._mode)
        return self._made

    @property
    def reads_all(self) -> bool:
        """Whether somebody asked for every byte to be read, each time."""
        return self._mode == "hash"

    def quick(self) -> EvidenceVerifier:
        """Return the verifier as it looks again while the run goes on: at files that look untouched, it only looks.

        Whoever asked for every byte to be read gets that.
        """
        made = self()
        return made if self.reads_all else made.changed(mode="stat")

    async def reports_of(self, results: Iterable[StepResult]) -> dict[str, VerificationReport]:
        """Check the recorded claims of results.

        Args:
            results: the results.
        """
        with_claims: list[Any] = [each for each in results if each.evidence is not None and each.success]
        return await claims.reports_of(self(), with_claims) if with_claims else {}

    async def look_again(self, step: Step[Any], result: StepResult) -> VerificationReport:
        """Check the claims of one result, now that the program has yielded its step again.

        Some claims can only be checked then: a record alone leads to no database server, and names no function.

        Args:
            step: the step as it is yielded now.
            result: its recorded result.
        """
        claimed = step.modifiers.evidence
        if claimed is not None and any(callable(each) for each in claimed.claims):
            with contextlib.suppress(Exception):  # what it says now does not matter: the recorded claims are checked
                claims.claimed_pack(claimed, restored_value(step, result), place=result.path)
        return (await self.reports_of([result]))[result.path]

    async def report_in_doubt(self, step: Step[Any]) -> VerificationReport:
        """Check what can be claimed of a step without its result: whether it was done, although nobody saw it end.

        Args:
            step: the step.
        """
        pack = claims.stated_pack(step.modifiers.evidence)
        return await self().verify_evidence_pack(pack, moment=verdict.Moment.IN_DOUBT)


def verifying_of(latest: CheckpointData, given: EvidenceVerifier | None, options: RunOptions) -> Verifying:
    """Return what checks the claims of a run that has a record.

    Args:
        latest: its newest checkpoint.
        given: the engine's verifier, or None.
        options: how the resume is to be done.
    """
    base_path = options.base_path or str(latest.metadata.get("base_path", ""))
    return Verifying(given, options.verify, base_path, options.allow_network)


def is_open(report: VerificationReport | None) -> bool:
    """Tell whether claims could not be checked before their step was yielded.

    Args:
        report: the answers, if there were any.
    """
    return report is not None and any(verdict.is_against and not verdict.can_tell for verdict in report.verdicts)
