"""The bytes of a stream as lines for people who watch, in bounded memory."""

from __future__ import annotations

import codecs
import re

MAX_LINE = 10_000
"""How many characters of a line are shown."""

PROGRESS_SECONDS = 0.05
"""How far apart the states of a progress bar are shown, at the least."""

_ENDS = re.compile("(\r\n|\n|\r)")


class LineSplitter:
    """Splits one stream as it comes.

    A piece that ends with a carriage return is a state of a progress bar: a line too, but one of those that follow each
    other within 50 ms is enough. The last one is held until its time comes, so that none is ever missing at the end.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._part = ""
        self._is_cut = False
        self._is_after_return = False
        self._held: str | None = None
        self._next_at = float("-inf")

    def feed(self, data: bytes, now: float, *, is_last: bool = False) -> list[str]:
        """Return the lines that are complete now.

        Args:
            data: what the program wrote next.
            now: the time in seconds, of any clock that never goes back.
            is_last: whether the stream ends here; then the rest is a line too.
        """
        *pairs, rest = _ENDS.split(self._decoder.decode(data, is_last))
        lines: list[str] = []
        for piece, end in zip(pairs[::2], pairs[1::2], strict=True):
            was_after_return, self._is_after_return = self._is_after_return, end == "\r"
            if end == "\n" and was_after_return and not piece:  # "\r" and "\n" of one end, which came apart
                self._release(lines)
            elif end == "\r":
                self._progress(self._line(piece), now, lines)
            else:
                self._release(lines)
                lines.append(self._line(piece))
        if rest:
            self._is_after_return = False
            self._add(rest)
        if is_last:
            self._release(lines)
            if self._part:
                lines.append(self._line(""))
        return lines

    @property
    def due_at(self) -> float | None:
        """When a line is to be asked for by `overdue`, if one is held."""
        return None if self._held is None else self._next_at

    def overdue(self, now: float) -> list[str]:
        """Return the line that was held, where its time has come.

        Args:
            now: the time in seconds.
        """
        lines: list[str] = []
        if self._held is not None and now >= self._next_at:
            self._progress(self._held, now, lines)
        return lines

    def _progress(self, line: str, now: float, lines: list[str]) -> None:
        if not line:
            return
        if now < self._next_at:
            self._held = line
            return
        self._held = None
        self._next_at = now + PROGRESS_SECONDS
        lines.append(line)

    def _release(self, lines: list[str]) -> None:
        if self._held is not None:
            lines.append(self._held)
            self._held = None

    def _add(self, piece: str) -> None:
        room = MAX_LINE - len(self._part)
        self._is_cut = self._is_cut or len(piece) > room
        self._part += piece[:room]

    def _line(self, piece: str) -> str:
        self._add(piece)
        line = f"{self._part}…" if self._is_cut else self._part
        self._part, self._is_cut = "", False
        return line
