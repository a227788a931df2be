"""What a resume does with a step that waits, in a sentence. Rules, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flowckpt.checkpoint.signal import Signal
from flowckpt.checkpoint.wait import Wait, WaitKind, shown_moment
from flowckpt.plan.reason import Reason, ReasonKind


def message_for(wait: Wait, messages: Iterable[Signal]) -> Signal | None:
    """Return the message that ends a wait: the first that was sent before its deadline; None where there is none.

    Args:
        wait: the wait.
        messages: those that nobody has taken, in the order in which they are taken.
    """
    for message in messages:
        if message.ends(wait) and (wait.due_at is None or message.sent_at < wait.due_at):
            return message
    return None


def wait_reason(wait: Wait, message: Signal | None, moved: Sequence[str] = ()) -> Reason:
    """Return what a resume finds at a step that waits.

    Args:
        wait: the wait.
        message: what ends it, if that was sent.
        moved: what speaks against what is to be approved, claim by claim; empty where it is as it was asked for.
    """
    found = f"it {wait.said} since {shown_moment(wait.since)}"
    is_rejected = message is not None and wait.kind is WaitKind.APPROVAL and not message.data.get("approved")
    if message is not None:
        by = f" by {message.by}" if message.by else ""
        what = "sent" if wait.kind is not WaitKind.APPROVAL else "rejected" if is_rejected else "approved"
        found += f"; it was {what}{by} at {shown_moment(message.sent_at)}"
    if moved and not is_rejected:
        found += f"; what is to be approved has changed since ({'; '.join(moved)}): the resume asks anew"
    elif message is not None:
        found += ": the resume takes it"
    return Reason(ReasonKind.STARTED, found)


def untaken(messages: Iterable[Signal], taken: Iterable[str]) -> list[Signal]:
    """Return the messages that nobody has taken.

    Args:
        messages: what lies in the store.
        taken: the ids that the record names.
    """
    known = {*taken}
    return [message for message in messages if message.signal_id not in known]
