"""Every Python block and every console block of the pages runs, and prints what the page says that it prints.

A page is one program in one empty directory:

- Python blocks run one after another in one namespace. One that begins with `# name.py` is also that file.
- A `text` block right behind a Python block is what the block prints.
- Console blocks run their `$` lines; what stands below is what they print, standard error included. A command that fails
  must say so: by what it prints, or by an `$ echo $?` behind it. A block that shows no output at all is for reading.
- The files in `given/PAGE/` lie in the directory from the start, for pages that show no file.
- `09:12:33` stands for any time of day
- `…` stands for any text in a line, and alone on a line for any lines. Spaces count as one.

Blocks of other languages (`sh`, `json` …) are for reading; those that begin with `# name` are that file, too.
"""

import contextlib
import io
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from pages import PAGES, Block, blocks, shown

from tests.in_process import run_command

FILE = re.compile(r"# ([\w./-]+\.(?:py|toml|json))\n")
SHELL = re.compile(r"[|&;<>$`*?\\~()]")  # what a shell would do something about
RUNNABLE = {"flowckpt", "python", "cat", "head", "tail", "ls", "echo", "rm", "touch", "export", "cd"}
_TIME, _ANY_TIME = re.compile(r"\b\d\d:\d\d:\d\d\b"), r"\\d\\d:\\d\\d:\\d\\d"
WITH_BLOCKS = [page for page in PAGES if any(block.language in ("python", "console") for block in blocks(page))]


def pattern_of(expected: str) -> re.Pattern[str]:
    """Return the pattern of expected output, with `…` as wildcard."""
    lines = [
        r"(?:.*\n)*?" if line == "…" else _TIME.sub(_ANY_TIME, r".*".join(map(re.escape, line.split("…")))) + r"\n"
        for line in lined(expected).rstrip("\n").splitlines()
    ]
    return re.compile("".join(lines) if expected.strip() else "")


def lined(text: str) -> str:
    """Return text with single spaces: columns may be wider where this is run than where it was written."""
    return "".join(f"{re.sub(' +', ' ', line).rstrip()}\n" for line in text.splitlines())


def check_output(where: str, expected: str, printed: str) -> None:
    if pattern_of(expected).fullmatch(lined(printed)) is None:
        pytest.fail(f"{where}: it printed\n\n{printed}\ninstead of\n\n{expected}", pytrace=False)


class Program:
    """A page, run block by block."""

    def __init__(self, directory: Path, name: str) -> None:
        self.module = types.ModuleType(name)
        self.directory = directory
        self.cwd = directory
        self.last_code = 0
        self.printed: str | None = None
        places = [str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("FLOWCKPT")},
            "PATH": os.pathsep.join(places),
            "NO_COLOR": "1",
            "COLUMNS": "200",
            "TZ": "UTC",
            "LC_ALL": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(self, block: Block) -> None:
        if match := FILE.match(block.text):
            file = self.directory / match[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
        if block.language == "python":
            self.run_python(block)
        elif block.language == "console":
            self.run_console(block)
            self.printed = None
        elif block.language == "text" and block.follows and self.printed is not None:
            check_output(block.where, block.text, self.printed)
        else:
            self.printed = None

    def run_python(self, block: Block) -> None:
        # Compiled under the page's own name and lines: tracebacks, and the process that asks for the source, find it there.
        code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec", dont_inherit=True)
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                exec(code, self.module.__dict__)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and type(error) is KeyboardInterrupt:
                raise
            lines = [at.tb_lineno for at in frames(error) if at.tb_frame.f_code.co_filename == str(block.page)]
            line = lines[-1] if lines else block.line
            raise AssertionError(f"{shown(block.page)}:{line}: {type(error).__name__}: {error}") from error
        self.printed = out.getvalue()

    def run_console(self, block: Block) -> None:
        commands: list[tuple[int, str, list[str]]] = []
        for number, line in enumerate(block.text.splitlines(), block.line):
            if line.startswith("$ "):
                commands.append((number, line[2:], []))
            else:
                assert commands, f"{block.where}: the block does not begin with a command"
                commands[-1][2].append(line)
        if not any(expected for _, _, expected in commands):
            return
        for index, (number, command, expected) in enumerate(commands):
            following = commands[index + 1][1] if index + 1 < len(commands) else ""
            self.run_command(f"{shown(block.page)}:{number}", command, expected, is_code_shown=following == "echo $?")

    def run_command(self, where: str, command: str, expected: list[str], *, is_code_shown: bool) -> None:
        words = shlex.split(command)
        program = next(word for word in words if "=" not in word)
        assert program in RUNNABLE, f"{where}: {program!r} is not run by this test; write it in an sh block"
        if program == "export":
            self.environment.update(word.split("=", 1) for word in words[1:])
            return
        if program == "cd":
            self.cwd = (self.cwd / words[1]).resolve()
            return
        if program == "flowckpt" and not SHELL.search(command):
            code, printed = self.run_flowckpt(words)
        else:
            code, printed = self.run_shell(command)
        self.last_code = code if code >= 0 else 128 - code
        check_output(where, "".join(f"{line}\n" for line in expected), printed)
        if self.last_code and not expected and not is_code_shown:
            pytest.fail(f"{where}: exit code {self.last_code}; show it with '$ echo $?'\n\n{printed}", pytrace=False)

    def run_flowckpt(self, words: list[str]) -> tuple[int, str]:
        at = words.index("flowckpt")
        env = {**self.environment, **dict(word.split("=", 1) for word in words[:at])}
        code, printed, _ = run_command(words[at + 1 :], cwd=self.cwd, env=env, is_merged=True, is_script=True)
        return code, printed

    def run_shell(self, command: str) -> tuple[int, str]:
        ended = subprocess.run(
            ["bash", "-c", f"(exit {self.last_code}); {command}" if "$?" in command else command],
            cwd=self.cwd,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
        )
        return ended.returncode, ended.stdout.decode()


def frames(error: BaseException):
    at = error.__traceback__
    while at is not None:
        yield at
        at = at.tb_next


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=shown)
def test_the_blocks_of_a_page_run_and_print_what_it_says(page, tmp_path, monkeypatch):
    program = Program(tmp_path, "page")
    if (given := Path(__file__).parent / "given" / page.stem).is_dir():
        shutil.copytree(given, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "page", program.module)
    for logger in ("flowckpt", "flowckpt.events"):
        monkeypatch.setattr(logging.getLogger(logger), "level", logging.getLogger(logger).level)
    known = set(sys.modules)
    try:
        for block in blocks(page):
            program.run(block)
    finally:
        for name in set(sys.modules) - known:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
                del sys.modules[name]


@pytest.mark.parametrize(
    ("expected", "printed", "fits"),
    [
        ("a …\n", "a b c\n", True),
        ("…\nlast\n", "1\n2\nlast\n", True),
        ("…\nlast\n", "last\n", True),
        ("a\n", "a\nb\n", False),
        ("", "", True),
        ("", "a\n", False),
        ("time: … ms", "time: 12 ms\n", True),
        ("steps: 1", "steps: 12\n", False),
        ("a  b … c", "a b   x  c \n", True),
    ],
)
def test_the_wildcard_takes_what_it_should(expected, printed, fits):
    assert bool(pattern_of(expected).fullmatch(lined(printed))) is fits


def test_the_example_of_the_readme_is_the_quickstart():
    from pages import ROOT

    shown_code = next(block.text for block in blocks(ROOT / "README.md") if block.language == "python")
    _, _, code = (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8").partition('"""\n\n')
    assert shown_code == f"# quickstart.py\n{code}"
