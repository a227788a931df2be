"""A first pipeline, the settings, and completion: `flowckpt init`, `config` and `completion`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
from click.shell_completion import ShellComplete, get_completion_class

from flowckpt.cli.config.read import SettingValue, find_unknown_variables
from flowckpt.cli.config.settings import Part
from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.main import group
from flowckpt.cli.notices import warn
from flowckpt.cli.options import Command, color_option, json_option
from flowckpt.cli.render.tables import show_table
from flowckpt.cli.render.terminal import escape, say, write_document, write_lines
from flowckpt.cli.runs import named_on_failure
from flowckpt.cli.settings import command_settings
from flowckpt.stores.open import hide_passwords

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


@click.command("init", cls=Command)
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=".")
@json_option
def init_command(directory: Path, as_json: bool) -> int:
    """Write a working pipeline with its test and settings.

    Existing files are kept. DIRECTORY is created if missing; the current one by default.

    Examples:
      flowckpt init
      flowckpt init shop
    """
    written: list[str] = []
    kept: list[str] = []
    for name, text in FILES.items():
        path = directory / name
        with named_on_failure(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            (written if _write_new(path, text) else kept).append(name)
    if as_json:
        write_document({"directory": str(directory), "written": written, "kept": kept})
        return ExitCode.DONE
    for name in written:
        say(f"wrote {escape(str(directory / name))}")
    for name in kept:
        say(f"kept {escape(str(directory / name))}: it exists")
    if "pyproject.toml" in kept and "[tool.flowckpt]" not in (directory / "pyproject.toml").read_text(
        "utf-8", "replace"
    ):
        say(f"Add to pyproject.toml:\n\n{SETTINGS}")
    change = "" if directory == Path() else f"cd {shlex.quote(str(directory))} && "
    say(f"Run it: {change}flowckpt run pipeline.py")
    say(f"Test it: {change}python -m pytest")
    return ExitCode.DONE


def _write_new(path: Path, text: str) -> bool:
    """Write a file; return False if it exists."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return False
    except OSError:
        path.unlink(missing_ok=True)  # the next call would keep a part of it as an existing file
        raise
    return True


_PATH_OF_URL = re.compile(r"^(https?://)(?:[^/?#]*@)?([^/?#]*).*", re.IGNORECASE | re.DOTALL)
"""A webhook, whose path is often secret."""

_HEADER = ("SETTING", "VALUE", "FROM", "VARIABLE", "OPTION")


@click.command("config", cls=Command)
@json_option
@color_option
def config_command(as_json: bool) -> None:
    """Show each setting, its value here, and where it comes from: the environment, pyproject.toml, or the default.

    Passwords of stores and paths of webhooks are hidden. Exits with 2 if a setting is unknown or has an invalid value.

    Examples:
      flowckpt config
      FLOWCKPT_STORE=sqlite:runs.db flowckpt config --json
    """
    settings = command_settings()
    for name, remedy in find_unknown_variables().items():
        warn(f"the environment variable {name} is not a setting. {remedy}".rstrip())
    if as_json:
        document = {
            "file": None if settings.file is None else str(settings.file),
            "settings": [_make_document(setting) for setting in settings.entries.values()],
        }
        write_document(document)
    else:
        rows = [_make_row(setting) for setting in settings.entries.values()]
        show_table(_HEADER, rows, wrapped=("VALUE", "FROM"))


def _make_document(setting: SettingValue) -> dict[str, Any]:
    value = setting.value
    return {
        "name": setting.setting.name,
        "value": list(value) if isinstance(value, tuple) else _hide_secrets(setting),
        "source": str(setting.source),
        "place": setting.place,
        "variable": setting.setting.variable,
        "option": setting.setting.option,
    }


def _make_row(setting: SettingValue) -> list[str]:
    value = _hide_secrets(setting)
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, tuple):
        value = " ".join(value) or None
    elif isinstance(value, dict):
        value = " ".join(f"{name}={spec}" for name, spec in value.items()) or None
    return [
        setting.setting.name,
        "-" if value in (None, "") else str(value),
        setting.place or str(setting.source),
        setting.setting.variable,
        setting.setting.option or "-",
    ]


def _hide_secrets(setting: SettingValue) -> Any:
    if setting.setting.name in ("store", "mirror") and setting.value:
        return hide_passwords(setting.value)
    if setting.setting.part is Part.HOOKS and isinstance(setting.value, str):
        return _PATH_OF_URL.sub(r"\1\2/…", setting.value)
    return setting.value


_SHELLS = ("bash", "zsh", "fish")


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(_SHELLS))
def completion_command(shell: str) -> None:
    """Print the script that completes commands, options and run ids in a shell.

    Examples:
      eval "$(flowckpt completion bash)"
      flowckpt completion zsh > ~/.zfunc/_flowckpt
      flowckpt completion fish > ~/.config/fish/completions/flowckpt.fish
    """
    cls = get_completion_class(shell)
    assert cls is not None
    completion = cls(group, {}, "flowckpt", "_FLOWCKPT_COMPLETE")
    script = ShellComplete.source(completion)  # the base class: the one for bash would start bash to get its version
    write_lines(line.removesuffix(";") for line in script.strip().splitlines())
