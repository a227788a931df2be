"""What to do with a step that must not be done twice, when it may have been done already.

started, its end not recorded     its claims, with the facts that the program states, decide
done, and dropped with what       another call is another effect: run it; the same call: the recorded claims decide
came before it

claims hold         do not run it again: adopt the effect, or reuse the recorded result
claims are denied   it was not done, or is undone: run it
nobody can tell     ask, and never guess
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from flowckpt.arguments import argument_differences
from flowckpt.checkpoint import StepResult

if TYPE_CHECKING:
    from flowckpt.evidence.verdict import VerificationReport


class Settlement(StrEnum):
    """What to do with a step that may have been done."""

    RUN = "run"
    ADOPT = "adopt"
    REUSE = "reuse"
    ASK = "ask"


def settle_started(report: VerificationReport) -> Settlement:
    """Settle a step that was started and whose end was not recorded.

    Args:
        report: the answers to its claims, asked as of a step in doubt.
    """
    if report.verified:
        return Settlement.ADOPT
    return Settlement.RUN if report.outcome == "failed" else Settlement.ASK


def is_same_call(result: StepResult, arguments: Mapping[str, Any], version: str | None) -> bool:
    """Tell whether a step, run now, would repeat the effect of a recorded result.

    Args:
        result: the recorded result.
        arguments: what the record would keep of the arguments now.
        version: its version tag now.
    """
    return not argument_differences(result.arguments, arguments) and result.version == version


def settle_done(report: VerificationReport) -> Settlement:
    """Settle a step that was done with the same arguments, and would run again because one before it does.

    Args:
        report: the answers to its recorded claims.
    """
    if report.verified:
        return Settlement.REUSE
    return Settlement.RUN if report.outcome == "failed" else Settlement.ASK
