"""What a run tells while it goes on, in one of three forms: drawn, in lines, as JSON."""

from flowckpt.cli.progress.base import Progress
from flowckpt.cli.progress.choice import choose_progress

__all__ = ["Progress", "choose_progress"]
