"""The main example: what it makes, and that killing it changes nothing of that."""

import importlib.util
import os
import random
import re
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import pytest

import flowckpt
from tests.forked import Started

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "stdlib_index.py"
LIMIT, BATCH = 120, 10


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("stdlib_index", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The output of a run that nobody killed, and how long it took."""
    folder = tmp_path_factory.mktemp("calm")
    child = start(folder, folder)
    began = time.monotonic()
    said = child.communicate()[0]
    assert child.returncode == 0, said
    return folder / "index", time.monotonic() - began


def start(folder: Path, cwd: Path) -> Started:
    """Start or resume the run of a folder; the output is given as a relative path."""
    command = [HERE / "drive.py", folder / "store", "run", EXAMPLE, "stdlib_index", "index"]
    inputs = [f"limit={LIMIT}", f"batch_size={BATCH}"]
    child = Started([*command, *inputs], cwd=cwd, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "begun\n"
    return child


def content_of(output: Path) -> tuple[list[str], bytes]:
    with closing(sqlite3.connect(output / "index.db")) as database:
        return list(database.iterdump()), (output / "report.html").read_bytes()


# --- killed ----------------------------------------------------------------------------------------------------------


def test_a_killed_run_makes_the_same_database_and_report(calm, tmp_path):
    output, seconds = calm
    chance, killed, number = random.Random(11), 0, 0
    while number < 2 or killed < 4:  # when a kill lands depends on how busy the machine is; that it lands does not
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        for attempt in range(30):
            child = start(folder, folder)
            if attempt < 12:
                time.sleep(chance.uniform(0, seconds))
                child.kill()
            if "Summary(" in child.communicate()[0]:
                break
            killed += 1
        else:
            pytest.fail("the run does not come to an end")
        assert content_of(folder / "index") == content_of(output)
        assert not list((folder / "index").rglob("*.tmp"))


@pytest.mark.parametrize("seen", ["parsed/*.tmp", "parsed/0007.jsonl", "index.tmp", "index.db"])
def test_a_resume_elsewhere_goes_on_in_the_same_place(calm, tmp_path, seen):
    output, _ = calm
    second = tmp_path / "second"
    second.mkdir()
    for number in range(20):  # a temporary file lives so briefly on a quick disk that a run may end unseen
        first = tmp_path / f"first-{number}"
        first.mkdir()
        child = start(first, first)
        while child.poll() is None and not list(first.glob(f"index/{seen}")):
            time.sleep(0.0005)
        child.kill()
        if "Summary(" not in child.communicate()[0]:
            break
    else:
        pytest.fail(f"{seen} was never seen")
    said = start(first, second).communicate()[0]
    assert "Summary(" in said
    assert "restored=" in said
    assert content_of(first / "index") == content_of(output)
    assert not any(second.iterdir())


def test_it_can_be_run_again_over_an_older_output(calm, example, tmp_path):
    index = tmp_path / "index"
    engine = flowckpt.WorkflowEngine(flowckpt.MemoryCheckpointStore())
    engine.run_sync(example.stdlib_index, output=index, limit=9, batch_size=2).unwrap()
    (index / "index.tmp").write_text("left by a crash")
    (index / "parsed" / "0000.tmp").write_text("left by a crash")
    engine.run_sync(example.stdlib_index, output=index, limit=LIMIT, batch_size=BATCH).unwrap()
    assert content_of(index) == content_of(calm[0])


def test_the_command_line_runs_and_resumes_it(calm, tmp_path):
    def flowckpt_command(folder: Path, *arguments: object) -> subprocess.Popen:
        command = [sys.executable, "-m", "flowckpt", *map(str, arguments)]
        return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    inputs = ["-i", "output=index", "-i", f"limit={LIMIT}", "-i", f"batch_size={BATCH}"]
    for number in range(20):  # on a busy machine, a run may end before this process sees how far it is
        folder = tmp_path / str(number)
        folder.mkdir()
        child = flowckpt_command(folder, "run", EXAMPLE, *inputs)
        while child.poll() is None and not list(folder.glob("index/parsed/0002.jsonl")):
            time.sleep(0.002)
        child.kill()
        child.communicate()
        if child.returncode == -9:
            break
    assert child.returncode == -9
    child = flowckpt_command(folder, "resume", "--last", "--json")
    said, told = child.communicate()
    assert child.returncode == 0, told
    assert '"completed"' in said
    assert content_of(folder / "index") == content_of(calm[0])


# --- the database ----------------------------------------------------------------------------------------------------


def test_the_database_holds_what_was_parsed(calm):
    with closing(sqlite3.connect(calm[0] / "index.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("SELECT count(*) FROM modules").fetchone() == (LIMIT,)
        kinds = dict(database.execute("SELECT kind, count(*) FROM symbols GROUP BY kind"))
        assert kinds["module"] == LIMIT
        assert kinds["function"] > kinds["class"] > LIMIT / 2
        code = "SELECT line, lines, docstring FROM symbols WHERE name = 'argparse.ArgumentParser.parse_args'"
        line, lines, docstring = database.execute(code).fetchone()
        source = Path(importlib.util.find_spec("argparse").origin).read_text().splitlines()
        assert source[line - 1].strip().startswith("def parse_args(")
        assert 1 < lines < 30
        assert docstring == ""
        imports = {name for (name,) in database.execute("SELECT name FROM imports WHERE module = 3 ORDER BY name")}
        assert all(re.fullmatch(r"\w+", name) for name in imports)


@pytest.mark.parametrize(
    ("query", "found"),
    [("base64 AND decode", "base64.b64decode"), ("name:b64encode", "base64.b64encode"), ("parsing", "argparse")],
)
def test_full_text_search_finds_names_and_docstrings(calm, query, found):
    with closing(sqlite3.connect(calm[0] / "index.db")) as database:
        rows = database.execute("SELECT name FROM search WHERE search MATCH ? ORDER BY rank", (query,)).fetchall()
    assert (found,) in rows
    assert 0 < len(rows) < 400


def test_a_sqlite_without_full_text_search_is_a_clear_error(example, monkeypatch, tmp_path):
    monkeypatch.setattr(example, "SCHEMA", example.SCHEMA.replace("USING fts5", "USING fts_of_no_kind"))
    with pytest.raises(RuntimeError, match="lacks FTS5"):
        example.load([], tmp_path / "index.db")


# --- the report ------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Counts the elements, and fails on one that is not closed where it should be."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()
        self.links: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen[tag] += 1
        self.links += [value for name, value in attrs if name in {"src", "href", "xlink:href"}]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen[tag] += 1

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def page_of(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page


def test_the_report_is_well_formed_and_has_its_chart(calm):
    text = (calm[0] / "report.html").read_text()
    page = page_of(text)
    assert page.seen["svg"] == 1
    assert page.seen["g"] == text.count('class="bar"') == 20
    assert page.seen["table"] == 3
    assert page.seen["script"] == page.seen["link"] == 0
    assert page.links == []
    assert "://" not in text
    assert "prefers-color-scheme: dark" in text
    widths = [float(width) for width in re.findall(r'class="bar" width="([\d.]+)"', text)]
    assert all(0 <= width <= 420 for width in widths)
    assert len(set(widths)) > 5


def test_the_report_says_nothing_of_the_run(calm):
    text = (calm[0] / "report.html").read_text()
    assert str(calm[0].parent) not in text
    assert os.fspath(Path(os.__file__).parent) not in text
    assert time.strftime("%Y-") not in text


def test_the_report_escapes_what_it_shows(example, tmp_path):
    bad = "<script>alert('&')</script>"
    metrics = example.Metrics([example.Package(bad, 1, 2, 3, 4, 5)], [(bad, 1)], [(bad, 1)])
    example.report_on(example.Sources(tmp_path, bad, []), metrics, [bad], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert page_of(text).seen["script"] == 0
    assert text.count("&lt;script&gt;alert(&#x27;&amp;&#x27;)") == 8


# --- the steps -------------------------------------------------------------------------------------------------------


def test_odd_sources_are_parsed_or_named(example, tmp_path):
    sources = {
        "broken.py": b"def f(:\n",
        "null.py": b"a = '\x00'\n",
        "surrogate.py": b'"""half \\ud800 a pair"""\n',
        "latin.py": "# coding: latin-1\ndef größe(): 'Größe'\n".encode("latin-1"),
        "nested.py": b"class A:\n  def f(self):\n    async def g(): 'deep'\n    return g\n",
        "deep.py": b"x = " + b"+".join([b"1"] * 500) + b"\n",
        "pack/__init__.py": b"from . import sub\nimport os.path, sys\nfrom json.decoder import x\n",
        "empty.py": b"",
    }
    (tmp_path / "pack").mkdir()
    for path, source in sources.items():
        (tmp_path / path).write_bytes(source)
    batch = example.parse(tmp_path, list(sources), tmp_path / "batch.jsonl")
    assert batch.broken == ["broken.py", "null.py"]
    modules = {module.path: module for module in example.read([batch])}
    assert modules["surrogate.py"].symbols[0].docstring == "half ? a pair"
    assert modules["latin.py"].symbols[1] == ("function", "latin.größe", 2, 1, "Größe")
    assert [symbol.name for symbol in modules["nested.py"].symbols] == [
        "nested",
        "nested.A",
        "nested.A.f",
        "nested.A.f.g",
    ]
    assert modules["pack/__init__.py"].imports == ["json", "os", "sys"]
    assert modules["pack/__init__.py"].symbols[0].name == "pack"
    assert modules["empty.py"].lines == 0
    assert example.load([batch], tmp_path / "index.db") == sum(len(module.symbols) for module in modules.values())
    assert [package.name for package in example.measure([batch]).packages][:2] == ["nested", "pack"]


def test_a_batch_that_was_changed_behind_its_digest_is_refused(example, tmp_path):
    (tmp_path / "a.py").write_text("a = 1\n")
    batch = example.parse(tmp_path, ["a.py"], tmp_path / "batch.jsonl")
    batch.file.write_text(batch.file.read_text().replace("a.py", "b.py"))
    with pytest.raises(ValueError, match="is not what the parse step wrote"):
        example.measure([batch])


def test_test_directories_are_optional_and_installed_packages_left_out(example):
    everything, library = example.discover(None, tests=True), example.discover(None, tests=False)
    paths = [path for path, _ in everything.files]
    assert len(library.files) > 300
    assert {path for path, _ in library.files} <= set(paths)
    assert not any("site-packages" in path for path in paths)
    assert not any(path.startswith("test/") for path, _ in library.files)
    assert paths == sorted(paths)


def test_a_batch_needs_a_size(example, tmp_path):
    engine = flowckpt.WorkflowEngine(flowckpt.MemoryCheckpointStore())
    result = engine.run_sync(example.stdlib_index, output=tmp_path, batch_size=0)
    assert result.status == "failed"
    assert "batch_size must be at least 1" in str(result.error)
