"""Exports whose content was changed and whose digests were made to fit: refused, or a run that harms nothing."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import sys
from pathlib import Path

import pytest
from hostile_content import SECRET, changed, proved, text_of

from flowckpt.cli.exit_codes import ExitCode
from flowckpt.stores.log.sealing.keys import read_key_file
from tests.in_process import run_here

PROGRAM = """
from pathlib import Path
from flowckpt import continue_as, parallel, publish, step, workflow

Path(__file__).with_name("imported").touch()

def made(n):
    return {"a": n, "b": (1, 2.5, None, {3: "c"})}

def large():
    return "x" * 70_000

def fail():
    raise ValueError("no")

@workflow
def child(n: int):
    return (yield step("double").python(int.__mul__, n, 2))

@workflow
def w(n: int = 1):
    x = yield step("a").python(made, n).checkpoint()
    publish("half", {"done": 1})
    yield step("big").python(large).checkpoint()
    yield step("each").map(str, [1, 2, 3])
    yield parallel(step("left").python(len, "l"), step("right").python(len, "rr"))
    yield step("inner").workflow(child, n=2).checkpoint()
    yield step("pay").python(len, "once").at_most_once()
    try:
        yield step("fails").python(fail).retry(2, backoff=0.0)
    except ValueError:
        pass
    yield step("out").command(["echo", "hi"]).checkpoint()
    return x

@workflow
def waits(n: int = 1):
    yield step("a").python(made, n).checkpoint()
    found = yield step("ok").approval("Go?", timeout=86_400_000)
    yield step("go").wait("go")
    return found

@workflow
def again(n: int = 0):
    yield step("a").python(made, n).checkpoint()
    if n < 2:
        continue_as(n=n + 1)
    yield step("go").wait("go")
"""
CODES = {each.value for each in ExitCode} - {ExitCode.INTERNAL}
READING = (
    *(
        ["show", "im", "--steps"],
        ["show", "im", "--json"],
        ["plan", "im"],
        ["list", "--json"],
        ["store", "check", "im"],
    ),
    *(["export", "im", "-o", "again"], ["recover"], ["store", "stats"], ["verify", "im"], ["diff", "im", "victim"]),
)
CHANGING = (
    *(
        ["copy", "im", "--to", "sqlite:copied.db"],
        ["signal", "im", "go"],
        ["approve", "im", "ok"],
        ["tag", "im", "a=b"],
    ),
    *(
        ["fork", "im", "--id", "forked"],
        ["rollback", "im", "a"],
        ["report", "im", "-o", "r.html"],
        ["store", "repair", "im"],
    ),
    *(["store", "prune", "--older-than", "1d", "--dry-run"], ["cancel", "im"]),
)
MOST_CALLS = 3_000_000
KINDS = ("plain", "compressed", "signed", "document")


def run(place: Path, *words: str, stdin: str = "") -> tuple[int, str, str]:
    env = {"PATH": os.defpath, "TOKEN": SECRET, "FLOWCKPT_SECRETS": "TOKEN", "HOME": str(place)}
    if (place / "key").exists():
        env["FLOWCKPT_KEY_FILE"] = "key"
    return run_here([*words], cwd=place, env=env, stdin=stdin)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The lines of three exported runs and the documents of their checkpoints, and where their program is."""
    place = tmp_path_factory.mktemp("source")
    (place / "q.py").write_text(PROGRAM)
    lines, documents = {}, {}
    for name, code in (("w", 0), ("waits", 3), ("again", 3)):
        assert run(place, "run", f"q.py:{name}", "--id", name)[0] == code
        out = run(place, "export", name, "-o", "-")[1]
        lines[name] = [json.loads(line) for line in out.splitlines()[:-1]]
        documents[name] = json.loads(run(place, "export", name)[1])
    (place / "imported").unlink()
    return place, lines, documents


class Count:
    """Counts the calls of Python functions: a measure of work that does not depend on the machine."""

    def __enter__(self):
        self.calls = 0
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _note(self, frame, event, argument):
        self.calls += event == "call"


def contents(directory: Path) -> dict[str, bytes]:
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def written(place: Path, files, kind: str, chance: random.Random) -> list[str]:
    """Write a hostile file; return what was changed in it."""
    _, lines, documents = files
    name = chance.choice(list(lines))
    if kind == "document":
        tree = json.loads(json.dumps(documents[name]))
        what = [changed(tree, chance, list(documents.values())) for _ in range(chance.choice((1, 1, 1, 2, 4)))]
        (place / "hostile").write_bytes(text_of(tree))
        return what
    trees = json.loads(json.dumps(lines[name]))
    what = []
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        number = chance.randrange(len(trees))
        act = chance.choice(("change",) * 9 + ("twice", "remove", "swap"))
        if act == "change" and trees[number]:
            what.append(
                f"{number}: {changed(trees[number], chance, [each for every in lines.values() for each in every])}"
            )
        elif act == "twice":
            trees.insert(chance.randrange(len(trees) + 1), trees[number])
        elif act == "remove":
            del trees[number]
        else:
            other = chance.randrange(len(trees))
            trees[number], trees[other] = trees[other], trees[number]
        what.append(act)
    content = proved(trees, read_key_file(place / "key").newest if kind == "signed" else None)
    (place / "hostile").write_bytes(gzip.compress(content) if kind == "compressed" else content)
    return what


def is_fine(words: tuple[str, ...] | list[str], found: tuple[int, str, str]) -> str:
    """Return what is wrong with the answer of a command."""
    code, out, err = found
    if code not in CODES:
        return f"exit code {code}"
    if "Traceback" in err and words[0] != "resume":
        return "a traceback"
    if "\x1b" in out + err or "\0" in out + err:
        return "control characters"
    messages = len(re.findall(r"^flowckpt: ", err, re.MULTILINE))
    if code not in (0, 1, 3, 10) and not messages and not (out + err).strip():
        return "no message"
    return ""


def test_no_content_of_an_export_harms_anything(files, tmp_path, is_soak):
    (tmp_path / "q.py").write_text(PROGRAM)
    assert run(tmp_path, "store", "key", "new", "key", "--use", "authenticate")[0] == 0
    for name in ("victim", "other"):
        assert run(tmp_path, "run", "q.py:w", "--id", name)[0] == 0
    broken, taken = [], 0
    for seed in range(4000 if is_soak else 16):
        is_taken, wrong = attacked(tmp_path, files, seed)
        taken += is_taken
        broken += wrong
    assert not broken, broken
    assert taken > 2, "most must get past the checks, or nothing is proved"


def attacked(place: Path, files, seed: int) -> tuple[bool, list[tuple]]:
    """Import a hostile file and use it; return whether it was taken in, and what went wrong."""
    chance, marker, kind = random.Random(seed), files[0] / "imported", KINDS[seed % len(KINDS)]
    what = written(place, files, kind, chance)
    before = contents(place / ".flowckpt/runs")
    wrong = []

    def tried(*words: str) -> int:
        with Count() as count:
            found = run(place, *words)
        if said := is_fine(words, found):
            wrong.append((seed, kind, what, words, said, found))
        if count.calls > MOST_CALLS:
            wrong.append((seed, kind, what, words, f"{count.calls} calls"))
        return found[0]

    is_taken = tried("import", "hostile", "--id", "im") == 0
    if is_taken:
        for words in [*READING, *chance.sample(CHANGING, 4)]:
            tried(*words)
        if marker.exists():
            wrong.append((seed, kind, what, "its program was imported"))
        if seed % 3 == 0:
            tried("resume", "im", "--accept-import")
            marker.unlink(missing_ok=True)
    for each in ("im", "forked"):
        run(place, "store", "clear", each, "--yes")
    if contents(place / ".flowckpt/runs") != before:
        wrong.append((seed, kind, what, "another run was changed"))
    if run(place, "store", "check")[0] != 0:
        wrong.append((seed, kind, what, "the store is damaged"))
    return is_taken, wrong
