"""Replay, with no I/O, no clock and no loop: a generator and a record in, commands out."""

from flowckpt.replay.commands import Command, Crash, Enter, Execute, Finish, Restore
from flowckpt.replay.driver import Replay
from flowckpt.replay.record import SetAside

__all__ = ["Command", "Crash", "Enter", "Execute", "Finish", "Replay", "Restore", "SetAside"]
