"""The command line: `flowckpt` and `python -m flowckpt`."""

from flowckpt.cli.entry import main

__all__ = ["main"]
