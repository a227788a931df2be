"""`flowckpt init` writes a project that runs, resumes and passes its test as it is."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest

from flowckpt.cli.commands.setup import FILES
from tests.small_disk import mounted_disk


def test_the_pipeline_runs_and_its_test_passes_as_written(flowckpt):
    ran = flowckpt("init", "shop").expect(0)
    assert "flowckpt run pipeline.py" in ran.err
    shop = type(flowckpt)(flowckpt.directory / "shop")
    shown = shop("run", "pipeline.py", "--id", "first", "--json").expect(0).document
    assert shown["output"] == 3
    assert (shop.directory / "words.csv").read_text() == "texts/hello.txt,3\n"
    assert shop("resume", "first", "--json").expect(0).document["steps"]["executed"] == 0
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "flowckpt.testing.plugin"],
        cwd=shop.directory,
        env=shop.environment | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0 and "2 passed" in tested.stdout, tested.stdout


def test_existing_files_are_kept_and_named(flowckpt):
    flowckpt("init", "shop").expect(0)
    shop = flowckpt.directory / "shop"
    (shop / "pipeline.py").write_text("mine")
    (shop / "pyproject.toml").write_text("[project]\n")
    (shop / "test_pipeline.py").unlink()
    ran = flowckpt("init", "shop").expect(0)
    assert (shop / "pipeline.py").read_text() == "mine"
    assert "kept shop/pipeline.py: it exists" in ran.err and "wrote shop/test_pipeline.py" in ran.err
    assert "Add to pyproject.toml:\n\n[tool.flowckpt]" in ran.err
    document = flowckpt("init", "shop", "--json").expect(0).document
    assert document == {"directory": "shop", "written": [], "kept": [*FILES]}


def test_a_place_that_cannot_be_written_is_a_clear_error(flowckpt):
    (flowckpt.directory / "file").write_text("")
    failed = flowckpt("init", "file")
    assert failed.code == 2 and "file" in failed.err and "Traceback" not in failed.err


def test_a_full_disk_is_named_and_leaves_no_part_of_a_file(flowckpt, tmp_path):
    with mounted_disk(tmp_path / "disk", "256k") as disk:
        ballast = disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        failed = flowckpt("init", "disk/shop").expect(74)
        assert failed.err == "flowckpt: disk/shop/pipeline.py cannot be written: No space left on device\n"
        ballast.unlink()
        assert "kept" not in flowckpt("init", "disk/shop").expect(0).err
        assert all((disk / "shop" / name).read_text() == text for name, text in FILES.items())


def test_the_written_files_pass_the_checks_of_this_project(tmp_path):
    pytest.importorskip("ruff", reason="a tool of the developers: the tests need only the extra `test`")
    for name in ("pipeline.py", "test_pipeline.py"):
        (tmp_path / name).write_text(FILES[name])
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--isolated",
            "--select",
            "E,F,I,UP,B",
            "--line-length",
            "120",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
