"""Runs that a command had to leave out, because their records are damaged: named, and told by the exit code."""

from __future__ import annotations

from collections.abc import Sequence

from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.output import say
from flowckpt.cli.store_hints import with_store
from flowckpt.cli.terminal_text import escaped
from flowckpt.stores.integrity import Finding

_MOST = 8


def tell_left_out(findings: Sequence[Finding]) -> ExitCode:
    """Tell which runs were left out and why, and return the exit code: what can be read was told before.

    Args:
        findings: what the list of a store left out. One for which a key is missing is told, and is no damage.
    """
    for finding in findings[:_MOST]:
        say(f"flowckpt: {escaped(finding.workflow_id)} is left out: {escaped(finding.detail)}")
    if len(findings) > _MOST:
        say(f"flowckpt: {len(findings) - _MOST} more are left out")
    damaged = sum(finding.severity == "corrupt" for finding in findings)
    if not damaged:
        return ExitCode.DONE
    _point_at_check(damaged)
    return ExitCode.CORRUPT


def tell_unreadable(names: Sequence[str]) -> ExitCode:
    """Name the runs that are damaged, if any, and return the exit code.

    Args:
        names: their ids, or where they lie where the id cannot be read.
    """
    if not names:
        return ExitCode.DONE
    for name in names[:_MOST]:
        say(f"flowckpt: {escaped(name)} is left out: its record is damaged")
    if len(names) > _MOST:
        say(f"flowckpt: {len(names) - _MOST} more are left out")
    _point_at_check(len(names))
    return ExitCode.CORRUPT


def _point_at_check(count: int) -> None:
    what = "A run is" if count == 1 else f"{count} runs are"
    say(
        with_store(f"{what} damaged, and nothing was done with {'it' if count == 1 else 'them'}. See 'flowckpt check'.")
    )
