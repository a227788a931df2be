"""Damage to records, for the contract of repairs."""

from __future__ import annotations


def damaged(text: bytes, sequence: int) -> bytes:
    """The lines of a log with one byte changed in the record of a checkpoint; an adoption has a copy of it, which stays."""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if b'"sequence":%d,' % sequence in line and not line.startswith(b'{"adopts"'):
            lines[number] = line.replace(b'"checkpoint_id"', b'"checkpoint_iD"', 1)
    return b"".join(lines)
