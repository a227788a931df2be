"""What is released: it builds, it installs where nothing else is, and it runs the quick start of the README."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import flowckpt
from flowckpt.core.system import external

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
UV = shutil.which("uv", path=os.pathsep.join([str(ROOT / ".ci/tools/bin"), os.environ.get("PATH", "")]))

BARE = {
    name: value
    for name, value in os.environ.items()
    if name not in ("PYTHONPATH", "VIRTUAL_ENV") and not name.startswith("FLOWCKPT")
}

ALL_NAMES = """
import importlib, flowckpt
print(flowckpt.__file__)
for module in map(importlib.import_module, ("flowckpt", "flowckpt.errors", "flowckpt.events", "flowckpt.evidence", "flowckpt.stores")):
    for name in module.__all__:
        try:
            getattr(module, name)
        except ModuleNotFoundError as error:
            print(name, error.name)
"""
"""Prints where the package is, and the public names that need more than the core dependencies, with what they lack."""


def run(*words: str | Path, cwd: Path) -> str:
    done = subprocess.run(words, cwd=cwd, env=BARE, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


MODULES = {"python-ulid": "ulid"}
"""What a distribution is imported as, where its name differs."""


@pytest.mark.parametrize("requirement", PYPROJECT["project"]["dependencies"])
def test_each_core_dependency_is_imported_by_a_module_that_is_imported(requirement):
    distribution = re.split("[<>=~! ]", requirement)[0]
    name = MODULES.get(distribution, distribution)
    files = {file: file.read_text("utf-8") for file in (ROOT / "flowckpt").rglob("*.py")}
    users = [file for file, text in files.items() if re.search(rf"^\s*(import|from) {name}\b", text, re.MULTILINE)]
    modules = [".".join(user.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for user in users]
    imports = "\n".join(line for text in files.values() for line in text.splitlines() if "import" in line)
    assert [module for module in modules if re.search(_import_of(module), imports)]


def _import_of(module: str) -> str:
    """Return a pattern of the lines that import a module, by its whole name or out of its package."""
    package, _, name = map(re.escape, module.rpartition("."))
    return rf"\b{package}\.{name}\b|from {package} import .*\b{name}\b"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A directory with the sdist, and the wheel that was built from the sdist."""
    if UV is None:
        pytest.skip("uv is missing: .ci/environment installs it")
    directory = tmp_path_factory.mktemp("built")
    run(UV, "build", "--quiet", "--python", sys.executable, "--out-dir", directory, ROOT, cwd=directory)
    return directory


def one(directory: Path, pattern: str) -> Path:
    (found,) = directory.glob(pattern)
    return found


def in_repository(*parts: str) -> set[str]:
    files = (file for part in parts for file in ((ROOT / part).rglob("*") if (ROOT / part).is_dir() else [ROOT / part]))
    return {
        file.relative_to(ROOT).as_posix()
        for file in files
        if file.is_file() and not {"__pycache__", "_build"} & set(file.parts)
    }


def test_the_wheel_holds_the_package_and_nothing_else(built):
    with zipfile.ZipFile(one(built, "*.whl")) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == in_repository("flowckpt")
    assert {"flowckpt/py.typed", "flowckpt/__init__.py"} <= names


def test_the_sdist_holds_what_the_tests_need(built):
    with tarfile.open(one(built, "*.tar.gz")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert (
        in_repository("flowckpt", "tests", "docs", "examples", "benchmarks", ".github", "README.md", "LICENSE") <= names
    )
    assert {".ci/environment", ".ci/test", ".ci/pythons"} <= names
    assert not [name for name in names if name.startswith((".ci/tools", ".ci/environments"))]


@pytest.mark.parametrize("distribution", ["*.whl", "*.tar.gz"])
def test_it_runs_the_quick_start_in_an_empty_environment(built, distribution, tmp_path):
    environment, project = tmp_path / "environment", tmp_path / "project"
    python = environment / "bin" / "python"
    run(UV, "venv", "--quiet", "--python", sys.executable, environment, cwd=tmp_path)
    run(UV, "pip", "install", "--quiet", "--python", python, one(built, distribution), cwd=tmp_path)
    project.mkdir()

    (quick_start,) = re.findall(
        r"```python\n(# quickstart\.py\n.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL
    )
    (project / "quickstart.py").write_text(quick_start, "utf-8")
    ended = run(environment / "bin" / "flowckpt", "run", "quickstart.py", "-i", "pages=1", "--id", "first", cwd=project)
    assert "completed: etl first" in ended
    assert "steps: 2 executed, 0 restored, 0 failed" in ended
    assert (project / "report.txt").read_text("utf-8") == "2 rows, sum 0\n"

    where, *lacking = run(python, "-c", ALL_NAMES, cwd=project).splitlines()
    assert Path(where).is_relative_to(environment)
    assert lacking == ["ObjectCheckpointStore obstore", "PostgresCheckpointStore psycopg"]
    assert run(environment / "bin" / "flowckpt", "--version", cwd=project) == f"flowckpt {flowckpt.__version__}\n"
    installed = run(UV, "pip", "list", "--quiet", "--format", "freeze", "--python", python, cwd=tmp_path)
    assert not {"pytest", "hypothesis", "mypy", "ruff"} & set(re.findall(r"^[\w-]+", installed, re.MULTILINE))


PLUGIN_TESTS = """
from pathlib import Path

import pytest

from flowckpt import MemoryCheckpointStore, step, workflow
from flowckpt.evidence import artifact_exists
from flowckpt.testing import CheckpointStoreContract, CrashesFoundError, EvidenceContract

outbox = []


@workflow
def orders():
    word = yield step("word").wait("word")
    yield step("pause").sleep(3600)
    yield step("send").python(outbox.append, word).checkpoint()
    return word


async def test_the_fixture_answers_and_sleeps(flowckpt):
    flowckpt.answer("word", "go")
    result = flowckpt.run(orders)
    assert (result.unwrap(), outbox.pop()) == ("go", "go")
    assert await flowckpt.store.load_latest(result.workflow_id)


def test_a_mistake_is_found(flowckpt):
    flowckpt.answer("word", "go")
    with pytest.raises(CrashesFoundError, match="`send` ran twice: the process died after it and before its checkpoint"):
        flowckpt.explore_crashes(orders)


class TestStore(CheckpointStoreContract):
    def make_store(self):
        self.made = MemoryCheckpointStore()
        return self.made


class TestClaim(EvidenceContract):
    def make_claim(self):
        Path("a").touch()
        return artifact_exists("a")

    def break_claim(self):
        Path("a").unlink()
"""


def test_the_pytest_plugin_works_where_only_flowckpt_and_pytest_are_installed(built, tmp_path):
    environment, project = tmp_path / "environment", tmp_path / "project"
    python = environment / "bin" / "python"
    run(UV, "venv", "--quiet", "--python", sys.executable, environment, cwd=tmp_path)
    run(UV, "pip", "install", "--quiet", "--python", python, one(built, "*.whl"), "pytest", cwd=tmp_path)
    project.mkdir()
    run(environment / "bin" / "flowckpt", "init", cwd=project)
    (project / "test_mine.py").write_text(PLUGIN_TESTS, "utf-8")
    wanted = "fixture or mistake or crash or counted or claim or field"
    ended = run(python, "-m", "pytest", "-q", "-k", wanted, cwd=project)
    (passed,) = re.findall(r"^(\d+) passed", ended, re.MULTILINE)
    assert int(passed) >= 10, ended


def test_every_python_that_is_named_is_tested():
    """CI runs them all; a classifier stands for a Python on which the tests have passed."""
    (matrix,) = re.findall(r"python: \[(.*)\]", (ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    (supported,) = re.findall(r"^supported=\((.*)\)", (ROOT / ".ci/pythons").read_text("utf-8"), re.MULTILINE)
    in_ci = re.findall(r"[\d.]+", matrix)
    named = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(PYPROJECT["project"]["classifiers"]))
    assert in_ci == supported.split()
    assert set(named) <= set(in_ci)
    assert PYPROJECT["project"]["requires-python"] == f">={in_ci[0]}"


# --- dependencies ----------------------------------------------------------------------------------------------------


def required(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w-]+(\.[\w-]+)*", requirement)[0] for requirement in requirements}


CORE = required(PYPROJECT["project"]["dependencies"])
EXTRAS = set().union(
    *(
        required(requirements)
        for extra, requirements in PYPROJECT["project"]["optional-dependencies"].items()
        if extra not in ("dev", "docs", "test")
    )
)
COMES_ALONG = {
    "dask": "with distributed",
    "IPython": "with the process that works in it",
    "pytest": "with the process that subclasses flowckpt.testing's contract",
}


distributions_of_modules = functools.cache(importlib.metadata.packages_distributions)


@functools.cache
def imported() -> set[str]:
    """The packages of others that the package imports when it runs, at the top of a module, in a function or lazily."""
    found = set(external.MODULES.values())
    for file in (ROOT / "flowckpt").rglob("*.py"):
        found |= imported_by(ast.parse(file.read_text("utf-8")))
    return {name.partition(".")[0] for name in found} - sys.stdlib_module_names - {"flowckpt"}


def imported_by(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            found |= imported_by(ast.Module(node.orelse, []))
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "import_module":
            found |= {each.value for each in node.args if isinstance(each, ast.Constant)}
        found |= imported_by(node)
    return found


@functools.cache
def modules_of(distribution: str) -> set[str]:
    return {
        module
        for module, distributions in distributions_of_modules().items()
        if distribution.lower() in (each.lower() for each in distributions)
    }


@pytest.mark.parametrize("dependency", sorted(CORE))
def test_every_core_dependency_is_used(dependency):
    assert modules_of(dependency) & imported()


def test_every_import_is_a_declared_dependency():
    declared = set().union(*(modules_of(each) for each in CORE | EXTRAS))
    assert imported() - declared - COMES_ALONG.keys() == set()
