"""Installed packages: their versions are recorded, a change is mentioned, and only who asks for it runs steps again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flowckpt.core.system.functions import versions_of
from tests import forked

FLOW = """
    from flowckpt import step, workflow
    from helpers import total

    def add(x):
        return total(x)

    def plain(x):
        return x

    @workflow
    def flow():
        a = yield step("add").python(add, [1, 2]).checkpoint()
        return (yield step("plain").python(plain, a).checkpoint())
"""
HELPERS = (
    "import pydantic\nimport json\n\n\ndef total(x):\n    return pydantic.RootModel[list[int]](x).root and sum(x)\n"
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "flow.py").write_text("\n".join(line[4:] for line in FLOW.splitlines()))
    (tmp_path / "helpers.py").write_text(HELPERS)
    return tmp_path


def flowckpt(folder: Path, *words: str, version: str = ""):
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    if version:  # as another version of the package would be found
        fake = folder / f"site{version}" / f"pydantic-{version}.dist-info"
        fake.mkdir(parents=True, exist_ok=True)
        environment["PYTHONPATH"] = str(fake.parent)
    return forked.run(["-m", "flowckpt", *words], cwd=folder, env=environment)


def steps(done) -> dict[str, int]:
    return json.loads(done.stdout)["steps"]


def test_the_plan_mentions_another_version_and_nothing_runs_again_unless_asked(folder):
    flowckpt(folder, "run", "flow.py", "--id", "r")
    now = versions_of(["pydantic"])["pydantic"]
    assert "packages" not in flowckpt(folder, "plan", "r").stdout
    plan = flowckpt(folder, "plan", "r", version="9.9")
    assert plan.returncode == 0
    assert plan.stdout.count(f"packages: pydantic {now} → 9.9") == 1  # of the step that uses it
    assert steps(flowckpt(folder, "resume", "r", "--json", version="9.9"))["restored"] == 2
    asked = ["--on-package-change", "rerun"]
    assert "rerun     add" in flowckpt(folder, "plan", "r", *asked, version="9.9").stdout
    assert steps(flowckpt(folder, "resume", "r", "--json", *asked, version="9.9"))["executed"] == 2
    assert steps(flowckpt(folder, "resume", "r", "--json", *asked, version="9.9"))["executed"] == 0
    assert f"pydantic 9.9 → {now}" in flowckpt(folder, "plan", "r").stdout  # each result by the version that made it


def test_an_edit_in_another_module_is_found_at_the_shell(folder):
    flowckpt(folder, "run", "flow.py", "--id", "r")
    (folder / "helpers.py").write_text(HELPERS.replace("import json", "import json  # unused"))
    assert steps(flowckpt(folder, "resume", "r", "--json"))["executed"] == 0
    (folder / "helpers.py").write_text(HELPERS.replace("sum(x)", "sum(x) + 1"))
    refused = flowckpt(folder, "resume", "r")
    assert refused.returncode == 10
    assert "add(), or code of the project that it uses, was edited" in refused.stderr
    done = flowckpt(folder, "resume", "r", "--json", "--on-code-change", "rerun")
    assert json.loads(done.stdout)["output"] == 4


def test_versions_are_found_whatever_the_package_is_called():
    names = {"attr", "attrs", "numpy", "click", "nowhere", "dateutil"}
    found = versions_of(names)
    assert {"attr", "attrs", "numpy", "click", "dateutil"} == {*found}
    assert found["attr"] == found["attrs"]
    import numpy as np

    assert found["numpy"] == np.__version__


def test_a_directory_is_listed_again_only_once_it_has_changed(tmp_path, monkeypatch):
    """Every plan and every resume asks for the versions."""
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "strange-1.0.dist-info"
    package.mkdir()
    assert versions_of(["strange"]) == {"strange": "1.0"}
    package.rename(package := tmp_path / "strange-1.1.dist-info")  # perhaps within the same tick of the clock
    assert versions_of(["strange"]) == {"strange": "1.1"}
    listed = []
    monkeypatch.setattr("os.listdir", lambda place, list_=os.listdir: listed.append(str(place)) or list_(place))
    for now, version in ((1_000_000_000, "1.1"), (1_100_000_000, "1.2")):
        package.rename(package := tmp_path / f"strange-{version}.dist-info")
        os.utime(tmp_path, (now, now))
        assert versions_of(["strange"]) == versions_of(["strange"]) == {"strange": version}
    assert listed.count(str(tmp_path)) == 2


DIES = 'def plain(x):\n    import os\n    os.path.exists("go") or os.kill(os.getpid(), 9)'


def test_an_option_of_recover_runs_steps_again(folder):
    flow = (folder / "flow.py").read_text().replace("def plain(x):", DIES)
    (folder / "flow.py").write_text(flow.replace("return total(x)", 'print("added"); return total(x)'))
    for store, added in (("./reusing", ()), ("./rerunning", ("--on-package-change", "rerun"))):
        (folder / "go").unlink(missing_ok=True)
        assert flowckpt(folder, "run", "flow.py", "--store", store).returncode == -9
        (folder / "go").touch()
        done = flowckpt(folder, "recover", "--show-output", "--store", store, *added, version="9.9")
        assert "1 completed" in done.stderr
        assert ("added" in done.stderr) is bool(added)
