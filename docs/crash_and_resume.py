"""Record the picture of the README: a run that is killed with `kill -9`, and its resume, as a terminal shows them.

    python docs/crash_and_resume.py [FILE]        # writes docs/crash-and-resume.svg, or FILE

Both commands run for real, in a pseudo-terminal. Only the prompts and the shell's word `Killed` are added here.
"""

import os
import pty
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PICTURE = Path(__file__).with_name("crash-and-resume.svg")
WIDTH = 60
TRIES = 5
RUN = ["flowckpt", "run", "quickstart.py", "--id", "demo"]
RESUME = ["flowckpt", "resume", "demo"]
SAVED = re.compile(rb"fetch\[2\]\S*  .*saved.*fetch\[3\]", re.DOTALL)


def main() -> None:
    """Write the picture."""
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory() as directory:
            lines = record_session(Path(directory))
        if any("3 restored from" in line for line in lines):
            write_svg(lines, Path(sys.argv[1]) if sys.argv[1:] else PICTURE)
            return
    sys.exit(f"The kill came too late {TRIES} times: this machine is too busy.")


def record_session(directory: Path) -> list[str]:
    """Run the quick start, kill it while it fetches the fourth page, and resume it.

    Returns:
        The lines of the terminal, with their colors as escape sequences.
    """
    shutil.copy(ROOT / "examples" / "quickstart.py", directory)
    killed = run_in_terminal(RUN, directory, kill_after=SAVED)
    resumed = run_in_terminal(RESUME, directory)
    return [f"$ {' '.join(RUN)}", *killed, "Killed", f"$ {' '.join(RESUME)}", *resumed]


def run_in_terminal(command: list[str], directory: Path, kill_after: re.Pattern[bytes] | None = None) -> list[str]:
    """Run a command in a pseudo-terminal and return the lines that it leaves there."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(directory)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FLOWCKPT")}
        environment.pop("NO_COLOR", None)
        environment |= {"TERM": "xterm-256color", "COLUMNS": str(WIDTH), "LINES": "40", "LC_ALL": "C.UTF-8"}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        os.execvpe(command[0], command, environment)  # noqa: S606 - both commands stand above
    printed = b""
    while received := read_some(terminal):
        printed += received
        if kill_after and kill_after.search(printed):
            os.kill(pid, signal.SIGKILL)
            kill_after = None
    os.close(terminal)
    os.waitpid(pid, 0)
    return screen_lines(printed.decode())


def read_some(terminal: int) -> bytes:
    """Read what the terminal has; nothing once no process has it open any more."""
    try:
        return os.read(terminal, 65_536)
    except OSError:  # Linux reports the end of a pseudo-terminal as an I/O error
        return b""


def screen_lines(printed: str) -> list[str]:
    """Return the lines that stay on the screen: the ones that were drawn over are gone."""
    lines, row = [""], 0
    for part in re.split(r"(\r\n|\r\x1b\[2K|\x1b\[1A\x1b\[2K|\x1b\[\?25[lh])", printed):
        if part == "\r\n":
            row += 1
            lines[row : row + 1] = lines[row : row + 1] or [""]
        elif part == "\r\x1b[2K":
            lines[row] = ""
        elif part == "\x1b[1A\x1b[2K":
            row -= 1
            lines[row] = ""
        elif not part.startswith("\x1b[?25"):
            lines[row] += part
    return [line for line in lines if line]


def write_svg(lines: list[str], file: Path) -> None:
    """Draw the lines as a terminal window."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="truecolor")
        for line in lines:
            console.print(Text.from_ansi(line, style="bold" if line.startswith("$ ") else ""))
    svg = console.export_svg(title="flowckpt", theme=MONOKAI, unique_id="flowckpt")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # no fonts from the network
    file.write_text("".join(f"{line.rstrip()}\n" for line in svg.splitlines()), encoding="utf-8")


if __name__ == "__main__":
    main()
