"""The examples of maps, child workflows and undoing do what they say."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from flowckpt import FileCheckpointStore, RunOptions, WorkflowEngine
from flowckpt.engine.rules.reasons import ReuseMode

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def engine(tmp_path: Path) -> WorkflowEngine:
    return WorkflowEngine(FileCheckpointStore(tmp_path / "store"))


def test_a_file_that_comes_later_is_the_only_one_that_is_read(engine: WorkflowEngine, tmp_path: Path) -> None:
    flow, folder, manifest = example("checksum_tree").checksum_tree, tmp_path / "files", tmp_path / "list"
    (folder / "b").mkdir(parents=True)
    (folder / "a").write_text("one")
    (folder / "b" / "c").write_text("two")
    assert engine.run_sync(flow, workflow_id="run", folder=folder, manifest=manifest).output == 2
    first, second = (hashlib.sha256(text).hexdigest() for text in (b"one", b"two"))
    assert manifest.read_text() == f"{first}  a\n{second}  b/c\n"
    (folder / "new").write_text("three")
    options = RunOptions(from_step="files", reuse=ReuseMode.INPUTS)
    result = engine.resume_sync(flow, workflow_id="run", options=options)
    assert (result.output, result.steps.executed, result.steps.restored) == (3, 4, 2)


def test_statistics_of_texts(engine: WorkflowEngine, tmp_path: Path) -> None:
    module = example("text_statistics")
    (tmp_path / "a.txt").write_text("to be or not to be")
    (tmp_path / "b.txt").write_text("words")
    texts = [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert engine.run_sync(module.text_statistics, texts=texts).output == ("a.txt", 7)
    alone = engine.run_sync(module.one_text, text=texts[0]).output
    assert (alone.words, alone.commonest[:2]) == (6, [("be", 2), ("to", 2)])


def test_files_that_were_moved_come_back_when_a_later_one_cannot_be(engine: WorkflowEngine, tmp_path: Path) -> None:
    flow, inbox, archive = example("archive_files").archive_files, tmp_path / "inbox", tmp_path / "archive"
    inbox.mkdir()
    archive.mkdir()
    for name in "abc":
        (inbox / name).write_text(name)
    (archive / "c").write_text("older")
    result = engine.run_sync(flow, workflow_id="run", inbox=inbox, archive=archive)
    assert result.undone == ("move[1]", "move")
    assert sorted(each.name for each in inbox.iterdir()) == ["a", "b", "c"]
    assert [each.read_text() for each in archive.iterdir()] == ["older"]
    (archive / "c").unlink()
    assert engine.resume_sync(flow, workflow_id="run").output == 3
    assert sorted(each.read_text() for each in archive.iterdir()) == ["a", "b", "c"]
    assert list(inbox.iterdir()) == []
