"""What a run tells while it goes on, in one of three forms: drawn, in lines, as JSON."""

from flowckpt.cli.progress.choice import choose_progress
from flowckpt.cli.progress.state import Progress

__all__ = ["Progress", "choose_progress"]
