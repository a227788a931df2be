"""`python -m flowckpt` is the command `flowckpt`."""

from __future__ import annotations

from flowckpt.cli import main

if __name__ == "__main__":
    main()
