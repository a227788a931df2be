"""`flowckpt diff`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from flowckpt.cli.options import Command, RunName, color_option, json_option, store_option
from flowckpt.cli.render.tables import FoldedMembers, draws_colors, fold_members
from flowckpt.cli.render.terminal import escape, shorten, write, write_document
from flowckpt.cli.runs import open_chosen_store
from flowckpt.cli.settings import StoreChoice
from flowckpt.cli.stored_run import NamedCheckpoint, find_named_checkpoint
from flowckpt.core.identity.inputs_hash import show, show_both
from flowckpt.maintenance.diff import Aspects, Change, ChangeKind, CheckpointDiff, aspects_document, compare

_DIFFERENT = 1


@click.command("diff", cls=Command)
@click.argument("old", metavar="RUN[@CHECKPOINT]", type=RunName())
@click.argument("new", metavar="RUN[@CHECKPOINT]", type=RunName())
@click.option("--exit-code", "as_code", is_flag=True, help="Exit with 1 if anything differs, as git diff does.")
@json_option
@store_option
@color_option
def diff_command(old: str, new: str, as_code: bool, as_json: bool, store: StoreChoice) -> int:
    """Compare two runs or checkpoints: steps, outputs value by value, inputs, snapshot, evidence, status.

    CHECKPOINT is an id (its newest checkpoint counts) or a sequence; by default, the run's newest checkpoint. Times and
    durations are not compared. Exits with 0 even if something differs, unless --exit-code is given.

    Examples:
      flowckpt diff monday tuesday
      flowckpt diff nightly@clean nightly
      flowckpt diff nightly what-if --exit-code --json
    """
    checkpoints = open_chosen_store(store, runs_nothing=True)
    sides = find_named_checkpoint(checkpoints, old), find_named_checkpoint(checkpoints, new)
    differences = compare(sides[0].data, sides[1].data)
    if as_json:
        write_document(diff_document(*sides, differences))
    else:
        write(diff_text(*sides, differences, is_colored=draws_colors()))
    return _DIFFERENT if as_code and not differences.is_equal else 0


# The differences between two checkpoints, for people and as a document.


_SIGNS = {ChangeKind.ADDED: "+", ChangeKind.REMOVED: "-", ChangeKind.CHANGED: "~"}
_COLORS = {ChangeKind.ADDED: "green", ChangeKind.REMOVED: "red", ChangeKind.CHANGED: "yellow"}
_DIGESTED = ("code", "arguments")
"""Aspects recorded only as digests, so that no values can be shown."""
_MOST = 20


def diff_text(old: NamedCheckpoint, new: NamedCheckpoint, diff: CheckpointDiff, *, is_colored: bool) -> str:
    """Return the differences, one line per value.

    Args:
        old: the first checkpoint.
        new: the second.
        diff: their differences.
        is_colored: whether colours are allowed.
    """
    lines = [_colorize(f"- {_describe_checkpoint(old)}", ChangeKind.REMOVED, is_colored=is_colored)]
    lines.append(_colorize(f"+ {_describe_checkpoint(new)}", ChangeKind.ADDED, is_colored=is_colored))
    lines += _aspect_lines(diff.changes, "")
    for step in fold_members(diff.steps, lambda it: it.path, lambda it: it.kind.value):
        if isinstance(step, FoldedMembers):
            sign = _SIGNS[ChangeKind(step.kind)]
            text = f"{sign} {step.count} more steps of {shorten(step.path, 80)}/[…]; --json has them all"
            lines.append(_colorize(text, ChangeKind(step.kind), is_colored=is_colored))
            continue
        lines.append(_colorize(f"{_SIGNS[step.kind]} step {shorten(step.path, 80)}", step.kind, is_colored=is_colored))
        lines += _aspect_lines(step.changes, "    ")
    lines.append(_summary(diff))
    return "".join(f"{line}\n" for line in lines)


def _describe_checkpoint(named: NamedCheckpoint) -> str:
    data = named.data
    return f"run {escape(named.workflow_id)}, checkpoint {escape(data.checkpoint_id)} (sequence {data.sequence})"


def _aspect_lines(aspects: Aspects, indent: str) -> Iterator[str]:
    for name, changes in aspects.items():
        for change in changes[:_MOST]:
            yield f"{indent}{_line(name, change)}"
        if len(changes) > _MOST:
            yield f"{indent}{name}: {len(changes) - _MOST} more differences; --json has them all"


def _line(name: str, change: Change) -> str:
    place = f"{name}{change.place if change.place[:1] == '[' else f'.{change.place}'}" if change.place else name
    if change.kind is ChangeKind.ADDED:
        text = f"added {show(change.new)}"
    elif change.kind is ChangeKind.REMOVED:
        text = f"removed {show(change.old)}"
    else:
        text = " → ".join(show_both(change.old, change.new))
    if name in _DIGESTED and (isinstance(change.old, str) or isinstance(change.new, str)):
        text = str(change.kind)
    return escape(f"{place}: {text}")


def _summary(diff: CheckpointDiff) -> str:
    if diff.is_equal:
        return "nothing differs: " + ("1 step is" if diff.same == 1 else f"{diff.same} steps are") + " the same"
    counted = [f"{diff.count(kind)} {kind}" for kind in ChangeKind if diff.count(kind)]
    return f"steps: {', '.join([*counted, f'{diff.same} the same'])}"


def _colorize(line: str, kind: ChangeKind, *, is_colored: bool) -> str:
    return click.style(line, fg=_COLORS[kind]) if is_colored else line


def diff_document(old: NamedCheckpoint, new: NamedCheckpoint, diff: CheckpointDiff) -> dict[str, object]:
    """Return the document that `diff --json` prints."""
    return {
        "old": old.to_document(),
        "new": new.to_document(),
        "is_equal": diff.is_equal,
        "changes": aspects_document(diff.changes),
        "steps": [step.to_document() for step in diff.steps],
        "same": diff.same,
    }
