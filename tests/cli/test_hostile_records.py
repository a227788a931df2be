"""Records in a store whose content was changed and whose digests were made to fit: no command has an error of its own."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from pathlib import Path

import pytest

from flowckpt.cli.exit_codes import ExitCode
from flowckpt.stores.log.segment import START, TRAILER, chain_line
from tests.in_process import run_here

sys.path.append(str(Path(__file__).parents[1] / "portable"))
from hostile_content import changed, text_of

PROGRAM = """
from flowckpt import continue_as, publish, step, workflow

def made(n):
    publish("draft", {"n": n})
    return {"a": n, "b": (1, 2.5, None, {3: "c"})}

@workflow
def child(n: int):
    return (yield step("double").python(made, n).checkpoint())

@workflow
def asks(n: int = 1):
    question = yield step("q").wait("question")
    return n

@workflow
def w(n: int = 1):
    x = yield step("a").python(made, n).cache().record_arguments().checkpoint()
    yield step("go").start(child, n=3).checkpoint()
    yield step("tell").signal("asks", "question", {"deep": [1, 2]}).checkpoint()
    publish("half", {"done": 1})
    yield step("wait").wait("stop")
    return x

@workflow
def again(n: int = 0):
    yield step("a").python(made, n).checkpoint()
    if n < 2:
        return continue_as(n=n + 1)
    yield step("ok").approval("ship", ask={"n": n})
"""
READING = [
    *(["show", "RUN", "--steps", "--history"], ["show", "RUN", "--json"], ["show", "RUN", "--generations"]),
    *(["plan", "RUN"], ["list", "--waiting"], ["store", "check"], ["export", "RUN", "-o", "out"], ["store", "stats"]),
    *(["verify", "RUN"], ["diff", "RUN", "other"], ["report", "RUN", "-o", "r.html"], ["graph", "RUN"], ["recover"]),
    ["store", "prune", "--older-than", "1d"],
]
CHANGING = [
    *(["copy", "RUN", "--to", "sqlite:c.db"], ["signal", "RUN", "stop"], ["approve", "RUN", "ship"], ["cancel", "RUN"]),
    *(["tag", "RUN", "a=b"], ["fork", "RUN", "--id", "new"], ["rollback", "RUN", "a"], ["store", "repair", "RUN"]),
    *(["resume", "RUN"], ["run", "q.py:w", "--id", "fresh"]),
]
FINE = {each.value for each in ExitCode} - {ExitCode.INTERNAL}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    place = tmp_path_factory.mktemp("pristine")
    (place / "q.py").write_text(PROGRAM)
    for run, name in (("asks", "asks"), ("w", "w"), ("again", "again"), ("other", "w")):
        assert command(place, "run", f"q.py:{name}", "--id", run)[0] == ExitCode.SUSPENDED
    return place


def command(place: Path, *words: str) -> tuple[int, str, str]:
    return run_here([*words], cwd=place, env={"PATH": "/usr/bin:/bin", "HOME": str(place)})


def segments(place: Path, run: str) -> list[Path]:
    return sorted((place / ".flowckpt" / "runs" / run).glob("0*.jsonl"))


def bodies(segment: Path) -> list[dict]:
    return [json.loads(line[: -TRAILER - 1] + b"}") for line in segment.read_bytes().splitlines(keepends=True)]


def write(segment: Path, trees: list) -> None:
    lines, digest = [], START
    for tree in trees:
        line, digest = chain_line(text_of(tree).rstrip()[:-1], digest)
        lines.append(line)
    segment.write_bytes(b"".join(lines))


def why_wrong(words: list[str], found: tuple[int, str, str]) -> str:
    code, out, err = found
    if code not in FINE:
        return f"exit code {code}"
    if "Traceback" in err and words[0] not in ("resume", "run", "recover"):
        return "a traceback"
    return "control characters" if re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", out + err) else ""


def put(tree: dict, path: str, value: object) -> bool:
    """Put a value into a tree, where the tree has the place."""
    *above, last = path.split("/")
    for name in above:
        inner = (
            tree[int(name)] if isinstance(tree, list) and tree else tree.get(name) if isinstance(tree, dict) else None
        )
        if not isinstance(inner, dict | list):
            return False
        tree = inner
    if last not in tree:
        return False
    tree[last] = value
    return True


@pytest.mark.parametrize(
    ("run", "path", "value"),
    [
        ("w", "saved_at", {"a": 1}),
        ("w", "owner/pid", {}),
        ("w", "owner/pid", 2**80),
        ("w", "step_results/0/duration_ms", "long"),
        ("w", "step_results/0/arguments", "no"),
        ("w", "metadata/target/name", {}),
        ("again", "metadata/generation/attempt", "x"),
        ("again", "metadata/generation/former", 7),
        ("w", "metadata/waits", [1]),
        ("again", "adopts/segment", {}),
    ],
)
def test_no_record_of_another_program_is_an_error_of_flowckpt(pristine, tmp_path, run, path, value):
    shutil.copytree(pristine, tmp_path / "t")
    place = tmp_path / "t"
    segment = segments(place, run)[-1]
    trees = bodies(segment)
    assert sum(put(tree, path, value) for tree in trees), "the record has that place"
    write(segment, trees)
    found = {
        " ".join(words): command(place, *words) for words in ([run if x == "RUN" else x for x in y] for y in READING)
    }
    assert not {words: said for words, said in found.items() if why_wrong(words.split(), said)}
    code, out, err = found["store check"]
    if "pid" not in path:  # that decides nothing: the process is gone
        assert code == ExitCode.CORRUPT and f"corrupt: {run}: " in out and "flowckpt never writes" in out
        assert "ok: asks: " in out


def test_random_content_of_a_store_harms_nothing(pristine, tmp_path, is_soak):
    donors = [tree for run in ("asks", "w", "again") for segment in segments(pristine, run) for tree in bodies(segment)]
    wrong = []
    for seed in range(2000 if is_soak else 4):
        chance = random.Random(seed)
        place = tmp_path / str(seed)
        shutil.copytree(pristine, place)
        run = chance.choice(["w", "again", "asks"])
        segment = chance.choice(segments(place, run))
        trees = bodies(segment)
        what = [changed(chance.choice(trees), chance, donors) for _ in range(chance.choice((1, 1, 2, 3)))]
        write(segment, trees)
        for words in [*chance.sample(READING, 6), *chance.sample(CHANGING, 2)]:
            named = [run if word == "RUN" else word for word in words]
            found = command(place, *named)
            if said := why_wrong(named, found):
                wrong.append((seed, run, what, named, said, found))
        shutil.rmtree(place)
    assert not wrong, wrong
