"""The progress of a run in one of three forms: drawn, in lines, as JSON."""

from flowckpt.cli.progress.choice import choose_progress
from flowckpt.cli.progress.documents import JsonLines
from flowckpt.cli.progress.state import HeldBack, Progress

__all__ = ["HeldBack", "JsonLines", "Progress", "choose_progress"]
