"""`flowckpt init`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.options import Command, json_option
from flowckpt.cli.render.terminal import escaped, json_text, say, write

_EXAMPLE = """\b
Examples:
  flowckpt init
  flowckpt init shop"""

PIPELINE = '''"""Count the words of text files. A run that is interrupted resumes after its last checkpoint.

    flowckpt run pipeline.py -i folder=texts
    flowckpt resume --last
"""

from collections.abc import Generator
from pathlib import Path
from typing import Any

from flowckpt import step, workflow
from flowckpt.evidence import file_sha256


def find(folder: Path) -> list[str]:
    """Return the text files of a folder; sorted, so that every resume sees the same order."""
    return sorted(str(path) for path in folder.glob("*.txt"))


def count(path: str) -> int:
    """Return the number of words in a file."""
    return len(Path(path).read_text(encoding="utf-8").split())


def write(words: dict[str, int], target: Path) -> int:
    """Write one line for each file and return the sum."""
    target.write_text("".join(f"{path},{number}\\n" for path, number in words.items()), encoding="utf-8")
    return sum(words.values())


@workflow("count-words")
def count_words(folder: Path = Path("texts"), target: Path = Path("words.csv")) -> Generator[Any, Any, int]:
    """Count the words of all text files in a folder."""
    paths = yield step("find").python(find, folder).checkpoint()
    words = yield step("count").map(count, paths, concurrency=4).checkpoint()
    # The claim is checked when the step ends, and again before a resume reuses its result.
    return (
        yield step("write")
        .python(write, dict(zip(paths, words, strict=True)), target)
        .evidence(file_sha256(target))
        .checkpoint()
    )
'''

TEST = '''"""The pipeline gives the right result, a second resume reuses everything, and a crash at any place changes nothing."""

from pathlib import Path

from pipeline import count_words


def test_words_are_counted_and_a_finished_run_is_reused(tmp_path: Path, flowckpt) -> None:
    (tmp_path / "one.txt").write_text("a b c")
    (tmp_path / "two.txt").write_text("d e")
    target = tmp_path / "words.csv"

    result = flowckpt.run(count_words, workflow_id="test", folder=tmp_path, target=target)
    assert result.unwrap() == 5
    assert target.read_text().endswith(f"{tmp_path / 'two.txt'},2\\n")

    again = flowckpt.resume(count_words, workflow_id="test")
    assert again.unwrap() == 5
    assert again.steps.executed == 0


def test_a_crash_at_any_place_changes_nothing(tmp_path: Path, flowckpt) -> None:
    (tmp_path / "one.txt").write_text("a b c")
    flowckpt.explore_crashes(count_words, folder=tmp_path, target=tmp_path / "words.csv")
'''

SETTINGS = """[tool.flowckpt]
store = "file:.flowckpt"    # where runs are kept; flowckpt config shows all settings
"""

FILES = {
    "pipeline.py": PIPELINE,
    "test_pipeline.py": TEST,
    "texts/hello.txt": "Hello, resumable world\n",
    "pyproject.toml": SETTINGS,
    ".gitignore": ".flowckpt/\n__pycache__/\n",
}


@click.command("init", cls=Command, epilog=_EXAMPLE)
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=".")
@json_option
def command(directory: Path, as_json: bool) -> int:
    """Write a pipeline, its test and settings that run as they are.

    Files that exist are kept. DIRECTORY is made if it does not exist; the current one by default.
    """
    written, kept = [], []
    for name, text in FILES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            kept.append(name)
        else:
            written.append(name)
    if as_json:
        write(f"{json_text({'directory': str(directory), 'written': written, 'kept': kept}, indent=2)}\n")
        return ExitCode.DONE
    for name in written:
        say(f"wrote {escaped(str(directory / name))}")
    for name in kept:
        say(f"kept {escaped(str(directory / name))}: it exists")
    if "pyproject.toml" in kept and "[tool.flowckpt]" not in (directory / "pyproject.toml").read_text(
        "utf-8", "replace"
    ):
        say(f"Add to pyproject.toml:\n\n{SETTINGS}")
    change = "" if directory == Path() else f"cd {shlex.quote(str(directory))} && "
    say(f"Run it: {change}flowckpt run pipeline.py")
    say(f"Test it: {change}python -m pytest")
    return ExitCode.DONE
