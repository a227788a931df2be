"""Code in other modules of the project is code of the step: what is followed, what is not, and where it stands."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import textwrap
from itertools import count
from pathlib import Path

import pytest

from flowckpt.core.identity import sources
from flowckpt.core.identity.fingerprint import code_of, step_fingerprint
from flowckpt.core.identity.sources import refresh

NUMBERS = count()

HELPERS = """
    import math
    RATE = 2
    UNUSED = 1
    TABLE = {}

    def clean(x):
        return deep(x) * RATE

    def deep(x):
        return x + 1

    def other(x):
        return x

    def entry(x):
        return x * 10

    TABLE["entry"] = entry

    class Base:
        def load(self, x):
            return math.floor(x)
        @staticmethod
        def tidy(x):
            return x

    class Loader(Base):
        pass

    def logged(function):
        def around(*args):
            return function(*args)
        return around

    client = Loader()
"""


def project(folder: Path, files: dict[str, str]) -> Path:
    (folder / "pyproject.toml").parent.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text("")
    for name, text in {"helpers.py": HELPERS, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))
    return folder


@pytest.fixture
def code(monkeypatch):
    """Return what is known of a step's function, imported from a project in a fresh state."""

    def code(folder: Path, module: str = "flow", of: str = "step"):
        before = dict(sys.modules)
        monkeypatch.syspath_prepend(str(folder))
        importlib.invalidate_caches()
        try:
            function = importlib.import_module(module)
            for name in of.split("."):
                function = getattr(function, name)
            return code_of(function)
        finally:
            for name in [name for name in sys.modules if name not in before]:
                del sys.modules[name]
            sys.path.remove(str(folder))

    return code


FLOWS = {
    "from": "from helpers import clean\ndef step(x):\n    return clean(x)\n",
    "alias": "from helpers import clean as c\ndef step(x):\n    return c(x)\n",
    "attribute": "import helpers\ndef step(x):\n    return helpers.clean(x)\n",
    "attribute alias": "import helpers as h\nm = h\ndef step(x):\n    return h.clean(x)\n",
    "star": "from helpers import *\ndef step(x):\n    return clean(x)\n",
    "late": "def step(x):\n    from helpers import clean\n    return clean(x)\n",
    "late module": "def step(x):\n    import helpers\n    return helpers.clean(x)\n",
    "dict": "from helpers import clean\nWORK = {'clean': clean}\ndef step(x):\n    return WORK['clean'](x)\n",
    "by name": "import helpers\ndef step(x):\n    return getattr(helpers, 'clean')(x)\n",
    "through a helper": "from helpers import clean\ndef own(x):\n    return clean(x)\ndef step(x):\n    return own(x)\n",
    "checked only": "import typing\nif typing.TYPE_CHECKING:\n    from helpers import clean\ndef step(x: 'clean'):\n    return x\n",
    "default": "from helpers import clean\ndef step(x, how=clean):\n    return how(x)\n",
    "closure": "import helpers\ndef make():\n    def inner(x):\n        return helpers.clean(x)\n    return inner\nstep = make()\n",
    "partial": "import functools, helpers\ndef call(f, x):\n    return f(x)\nstep = functools.partial(call, helpers.clean)\n",
}  # fmt: skip


@pytest.mark.parametrize("way", [name for name in FLOWS if name != "partial"])
def test_a_helper_of_another_module_counts_whatever_leads_to_it(code, tmp_path, way):
    files = {"flow.py": FLOWS[way]}
    before = code(project(tmp_path / "a", files)).fingerprint
    assert before.startswith("2:")
    assert code(project(tmp_path / "b", files)).fingerprint == before, "the same code elsewhere"
    for old, new in (("x + 1", "x + 2"), ("RATE = 2", "RATE = 3")):
        changed = {**files, "helpers.py": HELPERS.replace(old, new)}
        assert code(project(tmp_path / new[-1], changed)).fingerprint != before, new


@pytest.mark.parametrize("way", [name for name in FLOWS if name not in ("by name", "late module", "partial")])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("UNUSED = 1", "UNUSED = 2"),
        ("return x\n", "return x, x\n"),
        ("x + 1", "x + 1  # a comment"),
        ("import math", "import math\n    import json"),
    ],
)
def test_what_is_not_reached_does_not_count(code, tmp_path, way, old, new):
    files = {"flow.py": FLOWS[way]}
    before = code(project(tmp_path / "a", files)).fingerprint
    assert code(project(tmp_path / "b", {**files, "helpers.py": HELPERS.replace(old, new)})).fingerprint == before


PACKAGE = {
    "shop/__init__.py": "from .rules.tax import with_tax as taxed\nfrom . import rules\n",
    "shop/rules/__init__.py": "",
    "shop/rules/tax.py": "from ..rates import RATE\ndef with_tax(x):\n    return x * RATE\n",
    "shop/rates.py": "RATE = 2\nOTHER = 1\n",
}
IN_PACKAGES = {
    "passed on": "from shop import taxed\ndef step(x):\n    return taxed(x)\n",
    "dotted": "import shop.rules.tax\ndef step(x):\n    return shop.rules.tax.with_tax(x)\n",
    "module from package": "from shop.rules import tax\ndef step(x):\n    return tax.with_tax(x)\n",
    "package attribute": "import shop\ndef step(x):\n    return shop.rules.tax.with_tax(x)\n",
    "package": "import shop\ndef step(x):\n    return shop.taxed(x)\n",
}


@pytest.mark.parametrize("way", IN_PACKAGES)
def test_packages_and_relative_imports_are_followed(code, tmp_path, way):
    files = {**PACKAGE, "flow.py": IN_PACKAGES[way]}
    before = code(project(tmp_path / "a", files)).fingerprint
    other = {**files, "shop/rates.py": "RATE = 2\nOTHER = 2\n"}
    assert code(project(tmp_path / "b", other)).fingerprint == before
    changed = {**files, "shop/rates.py": "RATE = 3\nOTHER = 1\n"}
    assert code(project(tmp_path / "c", changed)).fingerprint != before


def test_a_package_without_init_is_followed(code, tmp_path):
    files = {
        "parts/one.py": "def f(x):\n    return x\n",
        "flow.py": "from parts import one\ndef step(x):\n    return one.f(x)\n",
    }
    before = code(project(tmp_path / "a", files)).fingerprint
    assert code(project(tmp_path / "b", {**files, "parts/one.py": "def f(x):\n    return -x\n"})).fingerprint != before


@pytest.mark.parametrize(
    ("flow", "old", "new"),
    [
        ("from helpers import Loader\ndef step(x):\n    return Loader().load(x)\n", "math.floor(x)", "math.ceil(x)"),
        ("from helpers import client\ndef step(x):\n    return client.load(x)\n", "math.floor(x)", "math.ceil(x)"),
        (
            "from helpers import Loader\nclass Own(Loader):\n    def step(self):\n        pass\nstep = Own.step\n",
            "",
            "",
        ),
        ("import helpers\nclass Own(helpers.Loader):\n    pass\nstep = Own().load\n", "math.floor(x)", "math.ceil(x)"),
        (
            "from helpers import logged\n@logged\ndef step(x):\n    return x\n",
            "function(*args)",
            "function(*args) or 0",
        ),
        ("from helpers import TABLE\ndef step(x):\n    return TABLE['entry'](x)\n", "x * 10", "x * 11"),
    ],
)
def test_classes_decorators_and_tables_are_followed(code, tmp_path, flow, old, new):
    before = code(project(tmp_path / "a", {"flow.py": flow})).fingerprint
    assert before
    after = code(project(tmp_path / "b", {"flow.py": flow, "helpers.py": HELPERS.replace(old, new)})).fingerprint
    assert (before != after) is bool(old)


def test_two_helpers_of_one_name_are_told_apart(code, tmp_path):
    flow = "import one, two\ndef step(x):\n    return one.f(x) - two.f(x)\n"
    parts = "def f(x):\n    return x\n", "def f(x):\n    return 2 * x\n"
    first = code(project(tmp_path / "a", {"flow.py": flow, "one.py": parts[0], "two.py": parts[1]})).fingerprint
    second = code(project(tmp_path / "b", {"flow.py": flow, "one.py": parts[1], "two.py": parts[0]})).fingerprint
    assert first != second


def test_code_that_moves_to_another_module_is_the_same_code(code, tmp_path):
    here = "def deep(x):\n    return x + 1\ndef step(x):\n    return deep(x)\n"
    there = "from elsewhere import deep\ndef step(x):\n    return deep(x)\n"
    moved = {"flow.py": there, "elsewhere.py": "def deep(x):\n    return x + 1\n"}
    before = code(project(tmp_path / "a", {"flow.py": here})).fingerprint
    assert code(project(tmp_path / "b", moved)).fingerprint == before


def test_a_function_that_moves_to_where_its_helper_is_another_one_is_not_the_same_code(code, tmp_path):
    first, last = "def first(x):\n    return clean(x)\n", "def last(x):\n    return clean(x)\n"
    second = "def second(x):\n    return clean(x)\n"
    helpers = "def clean(x):\n    return x\n", "def clean(x):\n    return -x\n"
    flow = "from one import first\nfrom {} import second\nfrom two import last\ndef step(x):\n    return first(x), second(x), last(x)\n"
    files = {"flow.py": flow.format("one"), "one.py": helpers[0] + first + second, "two.py": helpers[1] + last}
    moved = {"flow.py": flow.format("two"), "one.py": helpers[0] + first, "two.py": helpers[1] + last + second}
    before = code(project(tmp_path / "a", files)).fingerprint
    assert code(project(tmp_path / "b", moved)).fingerprint != before
    same = {**moved, "two.py": "from one import clean\n" + last + second}
    before = code(project(tmp_path / "c", {**files, "two.py": "from one import clean\n" + last})).fingerprint
    assert code(project(tmp_path / "d", same)).fingerprint == before


def test_circles_end_and_count(code, tmp_path):
    files = {
        "flow.py": "import one\nfrom one import f as loop\ndef step(x):\n    return one.f(x), loop\n",
        "one.py": "import two\nfrom two import *\ndef f(x):\n    return two.g(x)\n",
        "two.py": "import one\nfrom one import *\ndef g(x):\n    return one.f(x) if x else 0\n",
    }
    before = code(project(tmp_path / "a", files)).fingerprint
    files["two.py"] = files["two.py"].replace("else 0", "else 1")
    assert code(project(tmp_path / "b", files)).fingerprint != before


def test_names_of_installed_packages_count_and_are_told(code, tmp_path):
    flow = "import json as j\nfrom attrs import evolve\nimport email.message\ndef step(x):\n    return j.dumps(evolve(x))\n"
    found = code(project(tmp_path / "a", {"flow.py": flow}))
    assert found.packages == {"attrs"}
    other = flow.replace("import evolve", "import frozen as evolve")
    assert code(project(tmp_path / "b", {"flow.py": other})).fingerprint != found.fingerprint


def test_modules_without_source_count_by_their_name(code, tmp_path):
    flow = "import made\nfrom gone import lost\ndef step(x):\n    return made.f(x), lost\n"
    folder = project(
        tmp_path / "a", {"flow.py": "def step(x):\n    return made.f(x), lost\nimport types\nmade = types\n"}
    )
    assert code(folder).fingerprint
    (folder / "flow.py").write_text(
        f"try:\n    {flow.splitlines()[0]}\nexcept ImportError:\n    pass\n"
        + flow.splitlines()[2]
        + "\n    return made.f(x)\n"
    )
    assert code(folder).packages == {"made"}


def test_files_outside_of_the_project_and_flowckpt_itself_are_not_followed(code, tmp_path, monkeypatch):
    (tmp_path / "shared").mkdir()
    shared = tmp_path / "shared" / "shared_code.py"
    shared.write_text("def f(x):\n    return x\n")
    monkeypatch.syspath_prepend(str(shared.parent))
    flow = "import shared_code, flowckpt\ndef step(x):\n    return shared_code.f(x), flowckpt.step\n"
    found = code(project(tmp_path / "a", {"flow.py": flow}))
    shared.write_text("def f(x):\n    return -x\n")
    again = code(project(tmp_path / "b", {"flow.py": flow}))
    assert found == again
    assert found.packages == {"shared_code"}


def test_without_a_mark_the_project_is_where_its_top_package_lies(tmp_path):
    for name in ("jobs/deep/__init__.py", "jobs/__init__.py", "jobs/deep/flow.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    sources.project_root.cache_clear()
    if not any((parent / ".git").exists() for parent in tmp_path.parents):
        assert sources.project_root(str(tmp_path / "jobs/deep/flow.py")) == str(tmp_path)
    (tmp_path / "jobs/setup.py").write_text("")
    sources.project_root.cache_clear()
    assert sources.project_root(str(tmp_path / "jobs/deep/flow.py")) == str(tmp_path / "jobs")


def test_the_fingerprint_is_the_same_however_the_program_is_started(tmp_path):
    """Imported or not yet, as a script or as a module, from here or from there, at this path or at that one."""
    files = {
        "jobs/__init__.py": "",
        "jobs/flow.py": "def step(x):\n    from jobs.late import f\n    return f(x)\n",
        "jobs/late.py": "import jobs.flow\ndef f(x):\n    return jobs.flow.step(x) if x else x\n",
    }
    show = "from flowckpt.core.identity.fingerprint import step_fingerprint; print(step_fingerprint({}))"
    found = set()
    for folder in (project(tmp_path / "a", files), project(tmp_path / "b/c", files)):
        for cwd, first in ((folder, ""), (tmp_path, "import jobs.late; ")):
            program = f"import sys; sys.path.insert(0, {str(folder)!r}); {first}import jobs.flow; {show.format('jobs.flow.step')}"
            done = subprocess.run([sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, check=True)
            found.add(done.stdout.strip())
        script = folder / "jobs/flow.py"
        script.write_text(
            script.read_text()
            + f"if __name__ == '__main__':\n    import sys; sys.path.insert(0, {str(folder)!r})\n    {show.format('step')}\n"
        )
        done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True)
        found.add(done.stdout.strip())
    assert len(found) == 1, found
    assert found != {""}


def test_a_module_that_is_edited_while_its_program_runs_does_not_lend_its_new_text(tmp_path, monkeypatch):
    folder = project(
        tmp_path / "a",
        {
            "edited_flow.py": "import edited_part\ndef step(x):\n    return edited_part.f(x)\ndef second(x):\n    return edited_part.f(x)\n"
        },
    )
    (folder / "edited_part.py").write_text("def f(x):\n    return 1\n")
    monkeypatch.syspath_prepend(str(folder))
    flow = importlib.import_module("edited_flow")
    try:
        first = step_fingerprint(flow.step)
        (folder / "edited_part.py").write_text("def f(x):\n    return 1000\n")

        assert step_fingerprint(flow.step) == first
        assert not sources.find_reloaded()
        importlib.reload(sys.modules["edited_part"])
        refresh()
        assert step_fingerprint(flow.step) != first
        assert not sources.find_reloaded()
    finally:
        sys.modules.pop("edited_flow"), sys.modules.pop("edited_part")
        shutil.rmtree(folder)


@pytest.mark.parametrize("change", ["edited", "deleted", "edited and imported"])
def test_a_changed_file_makes_only_one_start_forget_the_fingerprints(tmp_path, monkeypatch, change):
    files = {
        "changing_flow.py": "def step(x):\n    from changing_part import f\n    return f(x)\n",
        "changing_part.py": "def f(x):\n    return 1\n",
    }
    folder = project(tmp_path / "a", files)
    monkeypatch.syspath_prepend(str(folder))
    flow = importlib.import_module("changing_flow")
    part = folder / "changing_part.py"
    forgotten = []
    try:
        refresh()
        first = step_fingerprint(flow.step)
        if change == "deleted":
            part.unlink()
        else:
            part.write_text("def f(x):\n    return 1000\n")
        if change == "edited and imported":
            importlib.import_module("changing_part")
        refresh()
        second = step_fingerprint(flow.step)
        assert second != first
        monkeypatch.setattr(sources, "forget_functions", lambda: forgotten.append(1))
        refresh()
        assert not forgotten
        assert step_fingerprint(flow.step) == second
    finally:
        sys.modules.pop("changing_flow"), sys.modules.pop("changing_part", None)
        shutil.rmtree(folder)


def test_a_reloaded_module_that_no_step_uses_again_makes_only_one_start_forget_the_fingerprints(tmp_path, monkeypatch):
    folder = project(tmp_path / "a", {"unused_flow.py": "def step(x):\n    return x\n"})
    monkeypatch.syspath_prepend(str(folder))
    flow = importlib.import_module("unused_flow")
    forgotten = []
    try:
        assert step_fingerprint(flow.step)
        importlib.reload(flow)
        refresh()
        monkeypatch.setattr(sources, "forget_functions", lambda: forgotten.append(1))
        refresh()
        assert not forgotten
    finally:
        sys.modules.pop("unused_flow")
        shutil.rmtree(folder)
