"""Progress on a terminal: a few lines, redrawn some times a second, however many steps there are.

An event only changes a few fields, in about two microseconds; a thread of rich's draws them at its own pace.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from flowckpt.cli.progress.state import FanOuts, progress_text
from flowckpt.cli.render.tables import duration_text
from flowckpt.cli.render.terminal import escaped, shortened
from flowckpt.engine.rules.paths import is_within
from flowckpt.events import Event

# Prints of the user's code while progress is drawn: they appear above it, whole lines at a time.
#
# Each print would draw everything anew, in half a millisecond; so a burst of them is gathered and written with the next
# refresh, while a single one appears at once.


_BURST_SECONDS = 0.05


class PrintsAbove:
    """Stands in for `sys.stdout` or `sys.stderr`.

    Args:
        console: what is drawn on.
        live: what is drawn; its lock orders what is written.
        original: the stream that it stands for.
    """

    def __init__(self, console: Console, live: Live, original: TextIO) -> None:
        self._console = console
        self._live = live
        self._original = original
        self._pieces: list[str] = []
        self._last = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def write(self, text: str) -> int:
        """Take text; show it now, or with the next refresh where much is written."""
        self._pieces.append(text)
        if "\n" in text and time.monotonic() - self._last > _BURST_SECONDS:
            self.drain()
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Take several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Show a line that is not finished, as a question is; whole ones come with the next refresh."""
        if self._pieces and "\n" not in self._pieces[-1] and "\r" not in "".join(self._pieces):
            self.drain(is_last=True)

    def drain(self, *, is_last: bool = False) -> None:
        """Show what was taken."""
        with self._live._lock:
            pieces, self._pieces = self._pieces, []
            text = "".join(pieces)
            whole, _, rest = (text, "", "") if is_last else text.rpartition("\n")
            if rest:
                self._pieces.insert(0, rest)
            if whole or (text and not rest):
                self._console.print(Text.from_ansi(whole), soft_wrap=True)
        self._last = time.monotonic()


class LiveAbovePrints(Live):
    """Draws below what user code prints.

    Args:
        console: where to draw.
        frame: returns what to draw.
        refreshes: how often a second.
    """

    def __init__(self, console: Console, frame: Any, refreshes: float) -> None:
        super().__init__(
            console=console,
            get_renderable=frame,
            refresh_per_second=refreshes,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._streams = (sys.stdout, sys.stderr)
        self._prints: list[PrintsAbove] = []
        self._above: list[Text] = []

    def start(self, refresh: bool = False) -> None:
        """Begin to draw, and stand before the streams that go to this terminal."""
        super().start(refresh)
        self._streams = (sys.stdout, sys.stderr)
        sys.stdout, sys.stderr = self._standing_in(sys.stdout), self._standing_in(sys.stderr)

    def _standing_in(self, stream: TextIO) -> TextIO:
        if stream is None or not stream.isatty():
            return stream
        prints = PrintsAbove(self.console, self, stream)
        self._prints.append(prints)
        return cast("TextIO", prints)

    def show_above(self, line: Text) -> None:
        """Show a line above what is drawn, with the next refresh."""
        self._above.append(line)

    def _drain_above(self) -> None:
        with self._lock:
            lines, self._above = self._above, []
            if lines:
                self.console.print(Text("\n").join(lines), soft_wrap=True)

    def refresh(self) -> None:
        """Write what was printed, then draw."""
        if self._above:
            self._drain_above()
        for prints in self._prints:
            if prints._pieces:
                prints.drain()
        super().refresh()

    def stop(self) -> None:
        """Draw for the last time, and give the streams back."""
        self.restore_streams()
        for prints in self._prints:
            prints.drain(is_last=True)
        self._drain_above()
        super().stop()

    def restore_streams(self) -> None:
        """Give the streams back, where nobody else has replaced them since."""
        if isinstance(sys.stdout, PrintsAbove):
            sys.stdout = self._streams[0]
        if isinstance(sys.stderr, PrintsAbove):
            sys.stderr = self._streams[1]


_REFRESHES_PER_SECOND = 8
_LAST_LINES = 6
_MOST_RUNNING = 4
_PATIENCE_SECONDS = 1.0
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_BAR = 20
_ASCII_SPINNER = "|/-\\"


class _Line:
    """A step that has ended: the line that is shown of it."""

    __slots__ = ("detail", "duration_ms", "has_evidence", "is_adopted", "is_saved", "members", "path", "success")

    def __init__(
        self, path: str, duration_ms: float, detail: str = "", *, success: bool = True, is_adopted: bool = False
    ) -> None:
        self.path = path
        self.duration_ms = duration_ms
        self.detail = detail
        self.members = ""
        self.success = success
        self.is_saved = False
        self.has_evidence = False
        self.is_adopted = is_adopted


class LiveProgress:
    """Draws the progress of a run on standard error.

    Args:
        restored_attempt: the attempt that a resume goes on from; 0 for a new run.
        console: where to draw, for tests.
    """

    def __init__(self, restored_attempt: int = 0, console: Console | None = None) -> None:
        self._restored_attempt = restored_attempt
        self._console = console or Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
        self._is_utf8 = self._console.encoding.lower().startswith("utf")
        self._lock = threading.Lock()
        self._title = ""
        self._run = ""
        self._lines: deque[_Line] = deque(maxlen=_LAST_LINES)
        self._running: dict[str, float] = {}
        self._notes: dict[str, str] = {}
        self._fan_outs = FanOuts()
        self._undoing = ""
        self._undone = 0
        self._shown = 0
        self._stuck = 0
        self._amounts: dict[str, tuple[float, float | None, str]] = {}
        self._ended = 0
        self._failed = 0
        self._restored = 0
        self._reverified = 0
        self._evident: set[str] = set()
        self._adopted = 0
        self._moved: deque[str] = deque(maxlen=_LAST_LINES)
        self._trouble = ""
        self._is_stopping = False
        self._began = time.monotonic()
        self._live: LiveAbovePrints | None = None

    # --- as the run calls it -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to draw. Prints of the steps appear above what is drawn."""
        self._began = time.monotonic()
        self._live = LiveAbovePrints(self._console, self._frame, _REFRESHES_PER_SECOND)
        _forget_in_children(self)
        with contextlib.suppress(OSError):
            self._live.start()

    def tell(self, event: Event) -> None:
        """Take note of the event."""
        note = _NOTES.get(event.kind)
        if note is not None:
            with self._lock:
                self._fan_outs.note(event)
                note(self, event)

    def stop(self) -> None:
        """Draw the last state and leave it there."""
        self._is_stopping = True
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(OSError):
                live.stop()

    def forget(self) -> None:
        """Be without effect, in a process that was forked from the one that draws."""
        live, self._live = self._live, None
        if live is not None:
            live.restore_streams()

    # --- events ------------------------------------------------------------------------------------------------------

    def _on_begun(self, event: Any) -> None:
        self._run = event.workflow_id
        attempt = f"  attempt {event.attempt}" if event.attempt > 1 else ""
        self._title = f"{event.workflow_name} {event.workflow_id}{attempt}"

    def _on_restored(self, event: Any) -> None:
        self._restored += not self._fan_outs.is_composite(event.path)
        if event.path in self._evident:
            self._evident.discard(event.path)
            self._reverified += 1

    def _on_started(self, event: Any) -> None:
        if self._fan_outs.folding(event.path) is None:
            self._running[event.path] = time.monotonic()
        self._evident.discard(event.path)  # it held before, and the step is run again

    def _on_retrying(self, event: Any) -> None:
        self._amounts.pop(event.path, None)
        if event.path in self._running:
            self._notes[event.path] = f"try {event.tries} failed with {event.error_type}"

    def _on_progress(self, event: Any) -> None:
        if event.path in self._running:
            self._amounts[event.path] = (event.done, event.total, event.note)

    def _on_output(self, event: Any) -> None:
        live = self._live
        if live is not None:
            mark = "!" if event.stream == "stderr" else "|"
            style = "dim red" if event.stream == "stderr" else "dim"
            live.show_above(Text(f"{shortened(event.path, 80)} {mark} {escaped(event.line)}", style=style))

    def _on_verified(self, event: Any) -> None:
        self._evident.add(event.path)

    def _on_not_verified(self, event: Any) -> None:
        found = "; ".join(event.details) or event.reason
        self._moved.append(f"{event.path}: evidence does not hold: {found}")

    def _on_state_dropped(self, event: Any) -> None:
        self._moved.append(f"{event.path}: what it had saved of itself is dropped: {event.reason}")

    def _on_adopted(self, event: Any) -> None:
        self._adopted += 1
        self._lines.append(_Line(event.path, 0.0, is_adopted=True))

    def _on_completed(self, event: Any) -> None:
        self._end(_Line(event.path, event.duration_ms))

    def _on_failed(self, event: Any) -> None:
        self._failed += not self._fan_outs.is_composite(event.path)
        detail = f"{event.error_type}: {event.error_message}"
        self._end(_Line(event.path, event.duration_ms, detail, success=False))

    def _end(self, line: _Line) -> None:
        line.has_evidence = line.path in self._evident
        self._evident.discard(line.path)
        self._ended += not self._fan_outs.is_composite(line.path)
        self._running.pop(line.path, None)
        self._notes.pop(line.path, None)
        self._amounts.pop(line.path, None)
        fan_out = self._fan_outs.of(line.path)
        if fan_out is not None:
            line.members = f"  {fan_out}"
            left = [each for each in self._lines if not is_within(each.path, line.path)]
            self._shown -= len(self._lines) - len(left)
            self._lines = deque(left, _LAST_LINES)
            self._fan_outs.forget(line.path)
        if self._fan_outs.folding(line.path) is None or not line.success:
            self._lines.append(line)
            self._shown += 1

    def _on_waiting(self, event: Any) -> None:
        self._notes.update({wait.path: wait.said for wait in event.waits})

    def _on_voided(self, event: Any) -> None:
        self._moved.append(f"{event.path}: the approval is void, it is asked for again: {event.reason}")

    def _on_saved(self, event: Any) -> None:
        if event.reason == "step" and self._lines and self._fan_outs.folding(event.checkpoint_id) is None:
            self._lines[-1].is_saved = True

    def _on_not_saved(self, event: Any) -> None:
        self._trouble = f"checkpoint {event.checkpoint_id or event.sequence} not saved: {event.error}"

    def _on_undoing(self, event: Any) -> None:
        self._running.clear()
        self._undoing = event.path

    def _on_undone(self, event: Any) -> None:
        self._undoing = ""
        if event.error_type:
            self._stuck += 1
            self._trouble = f"{event.path} could not be undone: {event.error_type}: {event.error_message}"
        else:
            self._undone += 1

    def _on_over(self, event: Any) -> None:
        self._running.clear()

    # --- drawing -----------------------------------------------------------------------------------------------------

    def _frame(self) -> Group:
        if not self._title:
            waits = not self._is_stopping and time.monotonic() - self._began > _PATIENCE_SECONDS
            return Group(*[self._text("reading the record, and checking its evidence", "dim")] * waits)
        with self._lock:
            lines = list(self._lines)
            running = list(self._running.items())
            notes = dict(self._notes)
            amounts = dict(self._amounts)
            moved = list(self._moved)
            ended, failed, restored = self._ended, self._failed, self._restored
            adopted, reverified = self._adopted, self._reverified
            fan_outs = {path: f"  {found}" for path, _ in running if (found := self._fan_outs.of(path)) is not None}
            undoing, undone, stuck, shown = self._undoing, self._undone, self._stuck, self._shown
        now = time.monotonic()
        drawn = [self._text(escaped(self._title), "bold")]
        if restored:
            said = f"{restored} restored from {self._run}"
            said += f" (attempt {self._restored_attempt})" if self._restored_attempt else ""
            said += f", the evidence of {reverified} holds" if reverified else ""
            drawn.append(self._text(f"{self._mark(success=True)} {escaped(said)}", "cyan"))
        drawn += [self._text(shortened(line, 200), "yellow") for line in moved]
        if shown + adopted > len(lines):
            drawn.append(self._text(f"  and {shown + adopted - len(lines)} more", "dim"))
        drawn += [self._line(line) for line in lines]
        spinner = _SPINNER if self._is_utf8 else _ASCII_SPINNER
        turn = spinner[int(now * _REFRESHES_PER_SECOND) % len(spinner)]
        for path, since in running[:_MOST_RUNNING]:
            note = f"  {shortened(notes[path], 80)}" if path in notes else ""
            elapsed = duration_text((now - since) * 1000)
            count = fan_outs.get(path, "")
            if path in amounts:
                note = f"  {self._amount(*amounts[path])}{note}"
            drawn.append(self._text(f"{turn} {shortened(path, 80)}{count}  {elapsed}{note}", "yellow"))
        if len(running) > _MOST_RUNNING:
            drawn.append(self._text(f"  and {len(running) - _MOST_RUNNING} more running", "dim"))
        if undoing:
            drawn.append(self._text(f"{turn} undoing {shortened(undoing, 80)}", "magenta"))
        if undone or stuck:
            said = f"{undone} undone" + (f", {stuck} could not be undone" if stuck else "")
            drawn.append(self._text(said, "magenta"))
        if self._trouble:
            drawn.append(self._text(shortened(self._trouble, 200), "red"))
        counts = f"{ended} executed, {restored + adopted} restored" + (f", {failed} failed" if failed else "")
        drawn.append(self._text(f"{counts}  {duration_text((now - self._began) * 1000)}", "dim"))
        return Group(*drawn)

    def _amount(self, done: float, total: float | None, note: str) -> str:
        """Write how far a step is, with a bar where it says how much there is."""
        text = shortened(progress_text(done, total, note), 80)
        if total is None or total <= 0:
            return text
        full, empty = ("━", "─") if self._is_utf8 else ("#", ".")
        filled = min(_BAR, int(_BAR * done / total))
        return f"{full * filled}{empty * (_BAR - filled)} {text}"

    def _line(self, line: _Line) -> Text:
        text = self._text(f"{self._mark(success=line.success)} ", "green" if line.success else "red")
        text.append(f"{shortened(line.path, 80)}{line.members}", "")
        if line.is_adopted:
            text.append("  adopted, not run: it was done", "cyan")
        else:
            text.append(f"  {duration_text(line.duration_ms)}", "dim")
        if line.has_evidence:
            text.append("  evidence holds", "green")
        if line.is_saved:
            text.append("  saved", "blue")
        if line.detail:
            text.append(f"  {shortened(line.detail, 120)}", "red")
        return text

    def _text(self, text: str, style: str) -> Text:
        return Text(text, style=style, no_wrap=True, overflow="ellipsis", end="\n")

    def _mark(self, *, success: bool) -> str:
        if self._is_utf8:
            return "✓" if success else "✗"
        return "+" if success else "x"


_NOTES: dict[str, Callable[[LiveProgress, Any], None]] = {
    "WorkflowStarted": LiveProgress._on_begun,
    "WorkflowResumed": LiveProgress._on_begun,
    "StepStarted": LiveProgress._on_started,
    "StepRestored": LiveProgress._on_restored,
    "StepRetrying": LiveProgress._on_retrying,
    "StepProgress": LiveProgress._on_progress,
    "StepStateDropped": LiveProgress._on_state_dropped,
    "StepOutput": LiveProgress._on_output,
    "StepAdopted": LiveProgress._on_adopted,
    "EvidenceVerified": LiveProgress._on_verified,
    "EvidenceFailed": LiveProgress._on_not_verified,
    "StepCompleted": LiveProgress._on_completed,
    "StepFailed": LiveProgress._on_failed,
    "RollbackStarted": LiveProgress._on_undoing,
    "RollbackCompleted": LiveProgress._on_undone,
    "CheckpointSaved": LiveProgress._on_saved,
    "CheckpointFailed": LiveProgress._on_not_saved,
    "WorkflowCompleted": LiveProgress._on_over,
    "WorkflowFailed": LiveProgress._on_over,
    "WorkflowCancelled": LiveProgress._on_over,
    "WorkflowSuspended": LiveProgress._on_over,
    "WorkflowWaiting": LiveProgress._on_waiting,
    "ApprovalVoided": LiveProgress._on_voided,
}


def _forget_in_children(progress: LiveProgress) -> None:
    """Give a forked child its own streams back: the drawing thread is not there, and its lock may be held for ever."""
    known = weakref.ref(progress)

    def forget() -> None:
        if (found := known()) is not None and found._live is not None:
            found.forget()

    os.register_at_fork(after_in_child=forget)
