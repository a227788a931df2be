"""Each row of the table in `docs/explanation/code-changes.md`, made at the shell, with the effects that the table promises.

A row without a case fails, and so does a case without a row. The expected effects are read from the table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "code-changes.md"

SHOP = """
from pathlib import Path
import helpers, installed
from flowckpt import patched, step, workflow
from flowckpt.evidence import artifact_exists

RATE = 2

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")

def fetch(limit: int) -> helpers.Row:
    note("fetch")
    return helpers.Row(limit * RATE)

def price():
    note("price")
    return 7

def clean(count, by):
    note("clean")
    return helpers.doubled(count) + installed.one() + by

def load(number):
    note("load")
    if not Path("ready").exists():
        raise OSError("not ready")
    return number

@workflow("shop")
def shop(limit: int = 3, city: str = "Ulm"):
    rows = yield step("fetch").python(fetch, limit).checkpoint()
    cost = yield step("price").python(price).checkpoint()
    number = yield step("clean").python(clean, 5, 10).checkpoint()
    loaded = yield step("load").python(load, number)
    return loaded
"""
HELPERS = """
import attrs

@attrs.frozen
class Row:
    count: int

def doubled(number):
    return number * 2
"""
INSTALLED = "def one():\n    return 1\n"
CLEAN = 'step("clean").python(clean, 5, 10).checkpoint()'
CLEAN_LINE = f"    number = yield {CLEAN}\n"
MOVED = (
    SHOP[: SHOP.index("def fetch")].replace("RATE = 2\n", "") + SHOP[SHOP.index("def clean") : SHOP.index("def load")]
)

Edit = Callable[[Path], None]


def edit(old: str, new: str, file: str = "shop.py") -> Edit:
    def made(folder: Path) -> None:
        text = (folder / file).read_text()
        assert text.count(old) == 1, (old, text)
        (folder / file).write_text(text.replace(old, new))

    return made


def both(*edits: Edit) -> Edit:
    def made(folder: Path) -> None:
        for each in edits:
            each(folder)

    return made


def write(file: str, text: str) -> Edit:
    def made(folder: Path) -> None:
        (folder / file).write_text(text)

    return made


def nothing(folder: Path) -> None:
    """Change no file; only the options of the resume differ."""


@attrs.frozen
class Case:
    """One way to make the change of a row."""

    after: Edit
    before: Edit = nothing
    is_finished: bool = False
    words: tuple[str, ...] = ()
    ran: tuple[str, ...] = ()
    """The steps that a resume with new steps executes."""


def modified(modifier: str) -> Edit:
    return edit(CLEAN, CLEAN.replace(".checkpoint()", f"{modifier}.checkpoint()"))


def version(old: str, new: str) -> Edit:
    """Install another version of a package; without an old one, the first."""

    def made(folder: Path) -> None:
        if old:
            (folder / f"site-packages/installed-{old}.dist-info").rmdir()
        (folder / f"site-packages/installed-{new}.dist-info").mkdir()

    return made


CHILD = edit(
    '@workflow("shop")',
    "@workflow\ndef tidy(count: int, by: int = 10):\n"
    '    return (yield step("clean").python(clean, count, 10).checkpoint())\n\n@workflow("shop")',
)
CALLABLES = """
import enum
import attrs

@attrs.frozen
class Priced:
    by: int

    def clean(self, count):
        return clean(count, self.by)


class Cleaner:
    def __init__(self, by):
        self.by = by
        self.texts = []

    def add(self, by):
        return by + 3


@attrs.frozen
class Money:
    cents: int

    def add(self, by):
        return 3 + by


class Tariff(enum.Enum):
    FULL = 1

    @property
    def rate(self):
        return 10


class Config(dict):
    def add(self, by):
        return by - -3


def cleaner(by):
    def clean_by(count):
        return clean(count, by)

    return clean_by


def picking(pick):
    def picked(count):
        return clean(count, pick(9, 10))

    return picked


def add(by):
    return by + 3


def clean_in_order(functions, count):
    return clean(count, functions[0](10))


def clean_with(add, count):
    return clean(count, add(7))


def clean_by(cleaner, count):
    return clean(count, cleaner.add(7))


def clean_at(tariffs, count):
    return clean(count, tariffs["usual"].rate)


@workflow("shop")"""


def calling(call: str) -> Edit:
    return both(edit(CLEAN, f'step("clean").python({call}).checkpoint()'), edit('\n@workflow("shop")', CALLABLES))


OTHER_ARGUMENT = edit("clean, 5, 10)", "clean, 5, 11)")
AMOUNT = edit("    count: int", "    amount: int", "helpers.py")
CASES: dict[str, list[Case]] = {
    "the function of a recorded step": [Case(edit('note("clean")', 'note("cleaner")'))],
    "a helper, class or constant that this function uses": [
        Case(edit("RATE = 2", "RATE = 3")),
        Case(edit('        file.write(line + "\\n")', "        file.write(line)")),
        Case(edit("number * 2", "number * 3", "helpers.py")),
    ],
    "the version of an installed package": [Case(version("1.0", "2.0"), version("", "1.0"))],
    "an edit in an installed package, or another Python": [
        Case(edit("return 1", "return 2", "site-packages/installed.py")),
    ],
    "comments, formatting, docstrings": [
        Case(edit('    note("clean")\n', '    """Clean."""\n\n    note(  "clean"  )  # now\n')),
    ],
    "the arguments of a recorded step": [
        Case(OTHER_ARGUMENT),
        Case(edit("clean_with, abs", "clean_with, float"), calling("clean_with, abs, 5")),
    ],
    "the `max_output` of a recorded command": [
        Case(
            edit("max_output=4", "max_output=1_000"),
            edit(CLEAN, 'step("clean").command(["sh", "-c", "echo clean >> log; seq 9"], max_output=4).checkpoint()'),
        )
    ],
    "`tolerate` or `min_success` of a recorded map or group": [
        Case(
            edit("min_success=1", "min_success=2"),
            edit(CLEAN, 'step("clean").map(clean, [5, 6], by=10, min_success=1, concurrency=1).checkpoint()'),
        )
    ],
    "what the function of a recorded step holds": [
        Case(edit("Priced(10)", "Priced(11)"), calling("Priced(10).clean, 5")),
        Case(edit("cleaner(10)", "cleaner(11)"), calling("cleaner(10), 5")),
        Case(edit("picking(max)", "picking(min)"), calling("picking(max), 5")),
    ],
    "the code of a function or class that is passed as an argument": [
        Case(edit("def add(by):\n    return by + 3", "def add(by):\n    return by + 4"), calling("clean_with, add, 5")),
        Case(edit("        return by + 3", "        return by + 4"), calling("clean_with, Cleaner(1).add, 5")),
        Case(edit("        return by + 3", "        return by + 4"), calling("clean_by, Cleaner(1), 5")),
        Case(edit("lambda by: by", "lambda by: by + 1"), calling("clean_with, lambda by: by, 5")),
        Case(
            edit("[lambda by: by, lambda by: -by]", "[lambda by: -by, lambda by: by]"),
            calling("clean_in_order, [lambda by: by, lambda by: -by], 5"),
        ),
        Case(edit("return 3 + by", "return 4 + by"), calling("clean_by, Money(5), 5")),
        Case(edit("return by - -3", "return by - -4"), calling("clean_by, Config(cents=5), 5")),
        Case(edit("        return 10", "        return 11"), calling('clean_at, {"usual": Tariff.FULL}, 5')),
    ],
    "a file of `.reads()` or `.writes()` of a recorded step": [
        Case(write("data", "b"), both(write("data", "a"), modified('.reads("data")'))),
        Case(
            write("made", "b"),
            both(
                modified('.writes("made")'),
                edit('    note("clean")', '    note("clean"); Path("made").write_text("a")'),
            ),
        ),
    ],
    "the paths of `.reads()` or `.writes()`": [
        Case(
            both(write("more", "c"), edit('.reads("data")', '.reads("data", "more")')),
            both(write("data", "a"), modified('.reads("data")')),
        )
    ],
    "the `.version()` tag of a recorded step": [
        Case(modified('.version("2")')),
        Case(edit('version("2")', 'version("3")'), modified('.version("2")')),
    ],
    "the arguments or the tag of a finished step that is": [
        Case(change, modified(guard))
        for guard in (".at_most_once()", ".rollback(print)")
        for change in (OTHER_ARGUMENT, edit("clean, 5, 10)", 'clean, 5, 10).version("2")'))
    ],
    "the claims of a recorded step": [
        Case(
            edit('artifact_exists("data")', 'artifact_exists("nowhere")'),
            both(write("data", "a"), modified('.evidence(artifact_exists("data"))')),
        )
    ],
    "retries, timeout or checkpoint of a step": [
        Case(edit(CLEAN, CLEAN.replace(".checkpoint()", ".retry(3).timeout(60)"))),
    ],
    "the body of the workflow": [Case(edit("    return loaded\n", "    total = loaded\n    return total\n"))],
    "a recorded step is renamed or removed": [
        Case(edit('step("clean")', 'step("cleaned")')),
        Case(edit(CLEAN_LINE, "    number = 21\n")),
        Case(edit(CLEAN_LINE, f'    yield step("new").python(price)\n{CLEAN_LINE}')),
    ],
    'a branch with `patched("id")` before recorded steps': [
        Case(
            edit(
                CLEAN_LINE,
                '    if (yield patched("id")):\n        number = yield step("new").python(price)\n    else:\n    '
                + CLEAN_LINE,
            )
        )
    ],
    "a recorded step calls a function of another name": [
        Case(both(edit("def clean(", "def tidy("), edit("python(clean,", "python(tidy,"))),
    ],
    "a function moves to another module": [
        Case(
            both(
                write("moved.py", MOVED),
                edit(SHOP[SHOP.index("def clean") : SHOP.index("def load")], "from moved import clean\n\n"),
            )
        )
    ],
    "the order of recorded steps with different names": [
        Case(
            both(
                edit('    cost = yield step("price").python(price).checkpoint()\n', ""),
                edit("    rows = yield", '    cost = yield step("price").python(price).checkpoint()\n    rows = yield'),
            )
        )
    ],
    "a step is added after all recorded steps": [
        Case(
            edit("    return loaded\n", '    yield step("more").python(price)\n    return loaded\n'),
            is_finished=True,
            ran=("price",),
        )
    ],
    "the output of a finished run": [Case(edit("    return loaded\n", "    return loaded, 'new'\n"), is_finished=True)],
    "the name of the workflow": [Case(edit('@workflow("shop")', '@workflow("store")'))],
    "an input given to the resume": [Case(nothing, words=("-i", "limit=4"))],
    "the default of an input": [Case(edit("limit: int = 3", "limit: int = 4"), words=("-i", "city=Ulm"))],
    "the default of a child workflow's input": [
        Case(edit("by: int = 10", "by: int = 11"), both(edit(CLEAN, f"step('tidy').{made}.checkpoint()"), CHILD))
        for made in ("workflow(tidy, count=5)", "map(tidy, [5])")
    ],
    "the class of a recorded result": [
        Case(AMOUNT),
        Case(
            edit("    count: int", "    amount: int", "site-packages/installed.py"),
            both(
                edit("-> helpers.Row", "-> installed.Row"),
                edit("return helpers.Row", "return installed.Row"),
                write("site-packages/installed.py", HELPERS + INSTALLED),
            ),
        ),
    ],
    "with `--on-code-change reuse`, the class of a recorded result": [
        Case(AMOUNT, words=("--on-code-change", "reuse")),
    ],
}


def rows() -> list[tuple[str, str, str]]:
    """Return the cells of the table; `the same` stands for the cell above it."""
    text = PAGE.read_text().partition("| you change |")[2].partition("\n\n")[0]
    found: list[tuple[str, str, str]] = []
    for line in text.splitlines()[2:]:
        change, detected, action = (
            cell.strip() for cell in line.strip().removesuffix("|").removeprefix("|").split(" | ")
        )
        found.append((change, detected, found[-1][2] if action == "the same" else action))
    return found


def case_of(change: str) -> str:
    names = [name for name in CASES if change.startswith(name)]
    assert len(names) == 1, f"the row {change!r} has {len(names)} cases in this module"
    return names[0]


def test_each_row_has_a_case_and_each_case_a_row() -> None:
    assert [case_of(change) for change, _, _ in rows()] == [*CASES]


PARAMETERS = [
    pytest.param(detected, action, case, id=f"{change[:60]}-{number}")
    for change, detected, action in rows()
    for number, case in enumerate(CASES[case_of(change)])
]


@pytest.mark.parametrize(("detected", "action", "case"), PARAMETERS)
def test_the_row_says_what_happens(flowckpt: Any, tmp_path: Path, detected: str, action: str, case: Case) -> None:
    (tmp_path / "site-packages").mkdir()
    for file, text in {"shop.py": SHOP, "helpers.py": HELPERS, "site-packages/installed.py": INSTALLED}.items():
        (tmp_path / file).write_text(text)
    path = {"PYTHONPATH": os.pathsep.join([os.getcwd(), str(tmp_path / "site-packages")])}
    case.before(tmp_path)
    if case.is_finished:
        (tmp_path / "ready").touch()
    flowckpt("run", "shop.py:shop", "--id", "one", "--no-rollback", **path).expect(0 if case.is_finished else 1)
    assert flowckpt.log() == ["fetch", "price", "clean", "load"]
    (tmp_path / "ready").touch()
    case.after(tmp_path)

    plan = flowckpt("plan", "one", "--json", *case.words, **path)
    ran = flowckpt("resume", "one", "--json", *case.words, **path)
    executed = flowckpt.log()[4:]
    stop = re.search(r"stops with exit code (\d+)", action)
    if stop is not None:
        assert (plan.code, ran.code, executed) == (int(stop[1]), int(stop[1]), []), (plan, ran)
    else:
        assert ran.code == 0, ran
    for error in re.findall(r"`(\w+Error)`", detected):
        assert ran.document["error"]["type"].endswith(error), ran
    last = [] if case.is_finished else ["load"]
    if action == "runs again from this step":
        assert (plan.code, executed) == (10, ["clean", *last]), (plan, ran)
    elif action == "executes it":
        assert [each["decision"] for each in plan.document["steps"]][-1] == "new"
        assert executed == [*case.ran]
    elif action == "the run completes again with the new output":
        assert plan.document["ends_otherwise"] and ran.document["output"] != 21 and executed == []
    elif stop is None:
        assert action in ("", "depends on these steps", "reuses its results"), f"what does {action!r} mean?"
        assert (plan.code, executed) == (0, last), (plan, ran)
    if "mentions it" in detected:
        said = [reason for each in plan.document["steps"] for reason in each["reasons"]]
        assert {"kind": "packages", "detail": "installed 1.0 → 2.0"} in said
    is_detected = detected.startswith(("yes", "only")) or stop is not None
    assert is_detected or plan.document["stale"] == 0
