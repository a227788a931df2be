"""Progress on a terminal: a line for each ended step, and the running steps below these lines.

An event only changes a few fields, in about two microseconds; a thread of rich draws them at its own pace.

In a notebook, the same lines and bars are one output of the cell, which is redrawn.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
from rich.console import Console, Group
from rich.text import Text

from flowckpt.cli.progress.lines import LINES
from flowckpt.cli.progress.screen import Screen
from flowckpt.cli.progress.state import Counts, FanOutProgress, FanOuts, Progress, progress_text
from flowckpt.cli.render.tables import duration_text, figures_text
from flowckpt.cli.render.terminal import escape, shorten
from flowckpt.events import Event

_MOST_LINES = 500
_WIDTH = 110
_FRAME = "<pre style=\"line-height:normal;font-family:Menlo,'DejaVu Sans Mono',consolas,'Courier New',monospace\">{code}</pre>"


class CellScreen:
    """Draws in the output of the running cell, like `Screen` on a terminal.

    Args:
        frame: returns the drawing of the running steps.
        refreshes: refreshes per second.
        no_color: whether colors are forbidden.
    """

    def __init__(self, frame: Callable[[], Group], refreshes: float, *, no_color: bool) -> None:
        self._frame = frame
        self._every_seconds = 1.0 / refreshes
        self._no_color = no_color
        self._above: deque[Text] = deque(maxlen=_MOST_LINES)
        self._dropped_lines = 0
        self._output: Any = None
        self._drawn = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._redraw, name="flowckpt-cell", daemon=True)

    def start(self) -> None:
        """Start to draw."""
        from IPython.display import HTML, display  # noqa: PLC0415 - only a notebook has it

        self._drawn = self._html()
        self._output = display(HTML(self._drawn), display_id=True)  # type: ignore[no-untyped-call]
        self._thread.start()

    def show_above(self, line: Text) -> None:
        """Show a line above the running steps, with the next refresh."""
        self._dropped_lines += len(self._above) == _MOST_LINES
        self._above.append(line)

    def finish_line(self) -> None:
        """Do nothing: prints of steps have an output of their own."""

    def stop(self) -> None:
        """Draw for the last time."""
        self._stopped.set()
        self._thread.join()
        self._draw()

    def restore(self) -> None:
        """Draw nothing more."""
        self._stopped.set()

    def _redraw(self) -> None:
        while not self._stopped.wait(self._every_seconds):
            self._draw()

    def _draw(self) -> None:
        from IPython.display import HTML  # noqa: PLC0415 - only a notebook has it

        html = self._html()
        if html != self._drawn and self._output is not None:
            self._drawn = html
            self._output.update(HTML(html))  # type: ignore[no-untyped-call]

    def _html(self) -> str:
        console = Console(
            file=io.StringIO(),
            record=True,
            width=_WIDTH,
            highlight=False,
            markup=False,
            emoji=False,
            force_terminal=True,
            force_jupyter=False,
            no_color=self._no_color or None,
        )
        if self._dropped_lines:
            console.print(Text(f"{self._dropped_lines} lines left out", style="dim"))
        for line in [*self._above]:
            console.print(line, soft_wrap=True)
        console.print(self._frame())
        return console.export_html(inline_styles=True, code_format=_FRAME)


_REFRESHES_PER_SECOND = 8
_MOST_RUNNING = 8
_PATIENCE_SECONDS = 1.0
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_BAR = 20
_ENDS = frozenset({"StepCompleted", "StepFailed"})
_ASCII_SPINNER = "|/-\\"


@attrs.define
class Running:
    """A step that runs.

    Attributes:
        since: when it started.
        note: its wait, or the error of its last try.
        amount: its reported progress: done, total, note.
    """

    since: float
    note: str = ""
    amount: tuple[float, float | None, str] | None = None


class LiveProgress(Progress):
    """Draws the progress of a run on standard error.

    Args:
        restored_attempt: the attempt that a resume continues from; 0 for a new run.
        console: where to draw.
        no_color: whether colors are forbidden.
        in_cell: whether to draw in the cell of a notebook instead.
    """

    def __init__(
        self,
        restored_attempt: int = 0,
        console: Console | None = None,
        *,
        no_color: bool = False,
        in_cell: bool = False,
    ) -> None:
        self._restored_attempt = restored_attempt
        self._console = console or Console(
            file=sys.stderr, highlight=False, markup=False, emoji=False, no_color=no_color or None, force_terminal=True
        )
        self._new_screen = partial(CellScreen, no_color=no_color) if in_cell else partial(Screen, self._console)
        self._is_utf8 = self._console.encoding.lower().startswith("utf")
        self._lock = threading.Lock()
        self._run = ""
        self._running: dict[str, Running] = {}
        self._fan_outs = FanOuts()
        self._counts = Counts()
        self._verified: set[str] = set()
        self._line: Text | None = None  # of the step that ended last; held back because its checkpoint may follow
        self._undoing = ""
        self._started_at = time.monotonic()
        self._screen: Screen | CellScreen | None = None

    # --- called by the run -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to draw. Prints of the steps appear above the drawing."""
        self._started_at = time.monotonic()
        self._screen = self._new_screen(self._frame, _REFRESHES_PER_SECOND)
        _forget_in_children(self)
        with contextlib.suppress(OSError):
            self._screen.start()

    def show(self, event: Event) -> None:
        """Update the state of the drawing."""
        note = _NOTES.get(event.kind)
        if note is not None:
            with self._lock:
                if event.kind != "CheckpointSaved":
                    self._show_line()
                self._fan_outs.note(event)
                note(self, event)
            # Outside of the lock: the drawing thread takes it while it holds the lock of the screen.
            if event.kind in _ENDS and not self._running and (screen := self._screen) is not None:
                screen.finish_line()

    def stop(self) -> None:
        """Draw the last state and leave it there."""
        with self._lock:
            self._show_line()
            self._show_restored()
            self._running.clear()
            screen, self._screen = self._screen, None
        if screen is not None:
            with contextlib.suppress(OSError):
                screen.stop()

    def forget(self) -> None:
        """Stop drawing in a forked process."""
        screen, self._screen = self._screen, None
        if screen is not None:
            screen.restore()

    # --- events ------------------------------------------------------------------------------------------------------

    def _on_run_started(self, event: Any) -> None:
        self._run = event.workflow_id
        attempt = f"  attempt {event.attempt}" if event.attempt > 1 else ""
        self._show(self._text(escape(f"{event.workflow_name} {event.workflow_id}{attempt}"), "bold"))

    def _on_continued(self, event: Any) -> None:
        self._fan_outs = FanOuts()
        self._verified.clear()
        name = f"{event.workflow_name} {event.workflow_id}  generation {event.generation}, attempt {event.attempt}"
        self._show(self._text(escape(name), "bold"))

    def _on_restored(self, event: Any) -> None:
        is_reverified = event.path in self._verified
        self._verified.discard(event.path)
        if event.taken_from:
            self._counts.restored += 1
            if self._fan_outs.find_folded(event.path) is not None:
                return
            self._line = self._end_line(event.path).append(f"  taken from run {shorten(event.taken_from, 80)}", "cyan")
            return
        self._counts.restore(is_reverified=is_reverified)
        if not event.success:
            self._show_restored()
            self._show(self._end_line(event.path, success=False).append("  restored, with its failure", "red"))

    def _on_many_restored(self, event: Any) -> None:
        self._counts.restore(event.steps, is_reverified=False)

    def _on_started(self, event: Any) -> None:
        self._show_restored()
        if self._fan_outs.find_folded(event.path) is None:
            self._running[event.path] = Running(time.monotonic())
        self._verified.discard(event.path)  # its evidence held, but the step runs again

    def _on_retrying(self, event: Any) -> None:
        if (running := self._running.get(event.path)) is not None:
            running.amount, running.note = None, f"try {event.tries} failed with {event.error_type}"

    def _on_progress(self, event: Any) -> None:
        if (running := self._running.get(event.path)) is not None:
            running.amount = (event.done, event.total, event.note)

    def _on_output(self, event: Any) -> None:
        mark, style = ("!", "dim red") if event.stream == "stderr" else ("|", "dim")
        self._show(Text(f"{shorten(event.path, 80)} {mark} {escape(event.line)}", style=style))

    def _on_verified(self, event: Any) -> None:
        self._verified.add(event.path)

    def _on_not_verified(self, event: Any) -> None:
        reasons = "; ".join(event.details) or event.reason
        self._warn(f"{event.path}: evidence does not hold: {reasons}")

    def _on_warning(self, event: Any) -> None:
        self._warn(LINES[event.kind](event), "red" if event.kind == "CheckpointFailed" else "yellow")

    def _on_adopted(self, event: Any) -> None:
        self._counts.adopted += 1
        self._line = self._end_line(event.path).append("  adopted, not run: it was done", "cyan")

    def _on_ended(self, event: Any) -> None:
        path, members = event.path, ""
        failure = f"{event.error_type}: {event.error_message}" if event.kind == "StepFailed" else ""
        self._counts.executed += 1
        self._counts.failed += bool(failure)
        self._running.pop(path, None)
        has_evidence = path in self._verified
        self._verified.discard(path)
        if (fan_out := self._fan_outs.get(path)) is not None:
            members = f"  {fan_out}"
            self._fan_outs.forget(path)
        if self._fan_outs.find_folded(path) is not None and not failure:
            return
        line = self._end_line(path, success=not failure)
        line.append(f"{members}  {duration_text(event.duration_ms)}", "dim")
        if has_evidence:
            line.append("  evidence holds", "green")
        if event.figures:
            line.append(f"  {figures_text(event.figures)}", "dim")
        if failure:
            line.append(f"  {shorten(failure, 500)}", "red")
        self._line = line

    def _on_waiting(self, event: Any) -> None:
        for wait in event.waits:
            if (running := self._running.get(wait.path)) is not None:
                running.note = wait.said

    def _on_saved(self, event: Any) -> None:
        if event.reason == "step" and self._line is not None:
            self._line.append("  saved", "blue")
        self._show_line()

    def _on_undoing(self, event: Any) -> None:
        self._running.clear()
        self._undoing = event.path

    def _on_undone(self, event: Any) -> None:
        self._undoing = ""
        if event.error_type:
            self._counts.stuck += 1
            self._warn(f"{event.path} could not be undone: {event.error_type}: {event.error_message}", "red")
        else:
            self._counts.undone += 1
            self._warn(f"{event.path} undone", "magenta")

    def _on_over(self, event: Any) -> None:
        self._show_restored()
        self._running.clear()

    # --- lines above -------------------------------------------------------------------------------------------------

    def _show(self, line: Text) -> None:
        if self._screen is not None:
            self._screen.show_above(line)

    def _show_line(self) -> None:
        if self._line is not None:
            line, self._line = self._line, None
            self._show(line)

    def _show_restored(self) -> None:
        """Show one line for the steps that were restored since the last line."""
        restored, reverified = self._counts.take_restored()
        if restored:
            text = f"{restored} restored from {self._run}"
            text += f" (attempt {self._restored_attempt})" if self._restored_attempt else ""
            text += f", the evidence of {reverified} holds" if reverified else ""
            self._show(self._text(f"{self._mark(success=True)} {escape(text)}", "cyan"))

    def _warn(self, text: str, style: str = "yellow") -> None:
        self._show(Text(shorten(text, 500), style=style))

    def _end_line(self, path: str, *, success: bool = True) -> Text:
        return Text(f"{self._mark(success=success)} ", "green" if success else "red").append(shorten(path, 80), "")

    # --- drawing -----------------------------------------------------------------------------------------------------

    def _frame(self) -> Group:
        now = time.monotonic()
        with self._lock:
            if not self._run:
                waits = self._screen is not None and now - self._started_at > _PATIENCE_SECONDS
                return Group(*[self._text("reading the record, and checking its evidence", "dim")] * waits)
            turns = _SPINNER if self._is_utf8 else _ASCII_SPINNER
            turn = turns[int(now * _REFRESHES_PER_SECOND) % len(turns)]
            running = list(self._running.items())[:_MOST_RUNNING]
            drawn = [self._running_line(turn, path, step, now) for path, step in running]
            if len(self._running) > _MOST_RUNNING:
                drawn.append(self._text(f"  and {len(self._running) - _MOST_RUNNING} more running", "dim"))
            if self._undoing:
                drawn.append(self._text(f"{turn} undoing {shorten(self._undoing, 80)}", "magenta"))
            drawn.append(self._text(f"{self._counts}  {duration_text((now - self._started_at) * 1000)}", "dim"))
        return Group(*drawn)

    def _running_line(self, turn: str, path: str, step: Running, now: float) -> Text:
        seconds = now - step.since
        text = f"{turn} {shorten(path, 80)}"
        if (fan_out := self._fan_outs.get(path)) is not None:
            text += self._map_text(fan_out, seconds)
        text += f"  {duration_text(seconds * 1000)}"
        if step.amount is not None:
            done, total, note = step.amount
            text += f"  {self._bar(done, total)}{shorten(progress_text(done, total, note), 80)}"
        if step.note:
            text += f"  {shorten(step.note, 80)}"
        return self._text(text, "yellow")

    def _map_text(self, fan_out: FanOutProgress, seconds: float) -> str:
        """Write the progress of a map: a bar, a rate, and the remaining time."""
        text = f"  {self._bar(fan_out.done, fan_out.total)}{fan_out}"
        rate = (fan_out.done - fan_out.done_before) / seconds if seconds > 0 else 0.0
        if rate > 0:
            text += f"  {rate:.1f}/s" if rate < 100 else f"  {rate:,.0f}/s"
            if fan_out.total is not None and fan_out.total > fan_out.done:
                text += f"  {duration_text((fan_out.total - fan_out.done) / rate * 1000)} left"
        return text

    def _bar(self, done: float, total: float | None) -> str:
        if total is None or total <= 0:
            return ""
        full, empty = ("━", "─") if self._is_utf8 else ("#", ".")
        filled = min(_BAR, int(_BAR * done / total))
        return f"{full * filled}{empty * (_BAR - filled)} "

    def _text(self, text: str, style: str) -> Text:
        return Text(text, style=style, no_wrap=True, overflow="ellipsis", end="\n")

    def _mark(self, *, success: bool) -> str:
        if self._is_utf8:
            return "✓" if success else "✗"
        return "+" if success else "x"


_NOTES: dict[str, Callable[[LiveProgress, Any], None]] = {
    "WorkflowStarted": LiveProgress._on_run_started,
    "WorkflowResumed": LiveProgress._on_run_started,
    "WorkflowContinued": LiveProgress._on_continued,
    "StepStarted": LiveProgress._on_started,
    "StepRestored": LiveProgress._on_restored,
    "StepsRestored": LiveProgress._on_many_restored,
    "StepRetrying": LiveProgress._on_retrying,
    "StepProgress": LiveProgress._on_progress,
    "StepStateDropped": LiveProgress._on_warning,
    "StepOutput": LiveProgress._on_output,
    "StepAdopted": LiveProgress._on_adopted,
    "EvidenceVerified": LiveProgress._on_verified,
    "EvidenceFailed": LiveProgress._on_not_verified,
    "StepCompleted": LiveProgress._on_ended,
    "StepFailed": LiveProgress._on_ended,
    "RollbackStarted": LiveProgress._on_undoing,
    "RollbackCompleted": LiveProgress._on_undone,
    "CheckpointSaved": LiveProgress._on_saved,
    "CheckpointFailed": LiveProgress._on_warning,
    "WorkflowCompleted": LiveProgress._on_over,
    "WorkflowFailed": LiveProgress._on_over,
    "WorkflowCancelled": LiveProgress._on_over,
    "WorkflowSuspended": LiveProgress._on_over,
    "WorkflowWaiting": LiveProgress._on_waiting,
    "ApprovalVoided": LiveProgress._on_warning,
    "SignalSetAside": LiveProgress._on_warning,
}


def _forget_in_children(progress: LiveProgress) -> None:
    """Restore the streams in forked children, where no thread draws and the lock may be held forever."""
    known = weakref.ref(progress)

    def forget() -> None:
        if (display := known()) is not None:
            display.forget()

    os.register_at_fork(after_in_child=forget)
