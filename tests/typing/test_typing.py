"""The types of the language, as mypy and pyright infer them."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent / "examples_typing.py"
ROOT = Path(__file__).parents[2]
LINES = EXAMPLES.read_text("utf-8").splitlines()
EXPECTED = {n: line.partition("# says: ")[2] for n, line in enumerate(LINES, 1) if "# says: " in line}
WRONG = {n for n, line in enumerate(LINES, 1) if line.endswith("# error")}


def normal(said: str) -> str:
    """Type names as people write them: without modules, and without what only one checker says."""
    said = said.split(" | ")[0] if said.startswith("Any |") else said
    said = re.sub(r"\b(?:[a-z_]\w*\.)+", "", said).rstrip("*?")
    said = "Any" if said == "Unknown" else said  # pyright's word for an Any that nobody wrote
    return re.sub(r"Generator\[Step\[Any\], Any", "Generator[Any, Any", said)


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def by_mypy(cache: Path) -> tuple[dict[int, str], set[int]]:
    output = run("mypy", "--strict", "--no-error-summary", "--cache-dir", str(cache), "--config-file=", str(EXAMPLES))
    said, wrong = {}, set()
    for line, kind, text in re.findall(rf"{EXAMPLES.name}:(\d+): (error|note): (.*)", output):
        if found := re.match("Revealed type is [\"'](.*)[\"']", text):
            said[int(line)] = normal(found[1])
        elif kind == "error":
            wrong.add(int(line))
    return said, wrong


def by_pyright() -> tuple[dict[int, str], set[int]]:
    report = json.loads(run("pyright", "--outputjson", "--pythonpath", sys.executable, str(EXAMPLES)))
    said, wrong = {}, set()
    for found in report["generalDiagnostics"]:
        line = found["range"]["start"]["line"] + 1
        if revealed := re.match(r'Type of ".*" is "(.*)"', found["message"], re.DOTALL):
            said[line] = normal(revealed[1])
        elif found["severity"] == "error":
            wrong.add(line)
    return said, wrong


def has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def test_the_examples_say_what_is_expected():
    assert len(EXPECTED) == 48
    assert len(WRONG) == 36


@pytest.mark.skipif(not has("mypy"), reason="mypy is not installed")
def test_mypy_infers_what_a_step_returns_and_refuses_wrong_arguments(tmp_path):
    said, wrong = by_mypy(tmp_path)
    assert said == EXPECTED
    assert wrong == WRONG


@pytest.mark.skipif(not has("pyright"), reason="pyright is not installed")
def test_pyright_infers_what_a_step_returns_and_refuses_wrong_arguments():
    said, wrong = by_pyright()
    assert said == EXPECTED
    assert wrong == WRONG
