"""Help, version, completion, and what a start costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flowckpt import __version__
from flowckpt.cli.groups import SECTIONS


def test_every_command_has_help_with_an_example(commands, capsys):
    from flowckpt.cli import main

    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main([*command.split(), "--help"])
        assert ended.value.code == 0
        text = capsys.readouterr().out
        assert text.startswith(f"Usage: flowckpt {command} ") and f"flowckpt {command}" in text.split("Examples:")[1]


def test_commands_work_where_python_drops_docstrings(flowckpt, tmp_path):
    words = [sys.executable, "-B", "-OO", "-m", "flowckpt", "run", "pipeline.py:naps", "--id", "r", "--stay", "0"]
    ran = subprocess.run(words, cwd=flowckpt.directory, env=flowckpt.environment, capture_output=True, text=True)
    assert (ran.returncode, "internal error" in ran.stderr) == (0, False), ran.stderr


def test_the_group_and_its_module_are_the_same(flowckpt, commands):
    text = flowckpt("--help").expect(0).out
    assert text.startswith("Usage: flowckpt ") and all(f"  {command}  " in text for command in commands)
    assert "Usage: flowckpt" in flowckpt().err
    assert flowckpt("--version").expect(0).out == f"flowckpt {__version__}\n"
    assert "unknown command 'rsume'; did you mean resume" in flowckpt("rsume").expect(2).err


def test_a_script_is_printed_and_completes_commands_and_runs(flowckpt):
    for shell, sign in (("bash", "complete -o"), ("zsh", "#compdef flowckpt"), ("fish", "complete --no-files")):
        assert sign in flowckpt("completion", shell).expect(0).out
    flowckpt("completion", "tcsh").expect(2)
    flowckpt("run", "pipeline.py:naps", "--id", "nightly").expect(0)

    def completed(words: str, position: int) -> list[str]:
        ran = flowckpt(_FLOWCKPT_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(position))
        return ran.out.split()

    assert completed("flowckpt res", 1) == ["plain,resume"]
    assert completed("flowckpt resume ni", 2) == ["plain,nightly"]
    assert completed("flowckpt run pip", 2) == ["file,pip"]


def test_help_loads_neither_the_engine_nor_rich():
    code = (
        "import sys\nfrom flowckpt.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "slow = ('flowckpt.engine', 'flowckpt.core.codec', 'cattrs', 'attrs', 'rich', 'asyncio', 'logging')\n"
        "print([name for name in slow if name in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr == "[]\n"


@pytest.mark.parametrize(
    "command", ["show", "store clear", "rollback", "fork", "export", "store check", "store pin", "cancel"]
)
def test_who_names_no_run_is_told_where_the_ids_are(flowckpt, command):
    ran = flowckpt(*command.split())
    if ran.code:  # 'store check' without a run is for all of them
        assert ran.expect(2).err.rstrip().endswith("'flowckpt list' shows the ids")
    else:
        assert command == "store check"


def test_the_help_shows_the_commands_by_purpose(flowckpt):
    text = flowckpt("--help").expect(0).out
    places = [text.index(f"\n{section}:\n") for section in SECTIONS]
    assert places == sorted(places)
    assert "  check  " in flowckpt("store", "--help").expect(0).out
    assert "did you mean store prune" in flowckpt("prune").expect(2).err


def test_the_store_and_the_level_may_stand_before_the_command(flowckpt):
    flowckpt("--store", "file:there", "run", "pipeline.py:naps", "--id", "one").expect(0)
    assert (flowckpt.directory / "there").is_dir()
    assert flowckpt("store", "--store", "file:there", "check").expect(0).out.startswith("ok: one: ")
    assert (
        flowckpt("--store", "file:there", "list", "--store", "file:other").expect(0).out == ""
    )  # the nearer one counts
    assert "debug" in flowckpt("--log-level", "loud", "list").expect(2).err


def test_a_check_stores_nothing_and_takes_no_options_of_storing(flowckpt):
    assert flowckpt("run", "pipeline.py:naps", "--check").expect(0).out.endswith("no difference\n")
    assert not (flowckpt.directory / ".flowckpt").exists()
    assert (
        "--id has no effect with --check" in flowckpt("run", "pipeline.py:naps", "--check", "--id", "x").expect(2).err
    )
    assert "--same-process needs --check" in flowckpt("run", "pipeline.py:naps", "--same-process").expect(2).err
