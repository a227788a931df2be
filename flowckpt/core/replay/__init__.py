"""Replay, with no I/O, no clock and no loop: a generator and a record in, commands out."""

from flowckpt.core.replay.drive import Answer, Expansion, Responder, drive, expand
from flowckpt.core.replay.replay import Command, Crash, DroppedResults, Enter, Execute, Finish, Replay, Restore

__all__ = [
    "Answer",
    "Command",
    "Crash",
    "DroppedResults",
    "Enter",
    "Execute",
    "Expansion",
    "Finish",
    "Replay",
    "Responder",
    "Restore",
    "drive",
    "expand",
]
