"""`explore_crashes` finds what a crash would break, and nothing where nothing is wrong."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import shutil
import sqlite3
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest

from flowckpt import step, workflow
from flowckpt.errors import FlowckptError, InputError
from flowckpt.testing import CrashesFoundError, explore_crashes
from flowckpt.testing.crash_child import Guard, Log, read_lines
from tests.forked import processes

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def in_a_small_process(test):
    """Run a test in a process that holds no other tests: a fork of this one, with all of them, takes twice as long."""

    @functools.wraps(test)
    def run(**given):
        told, tell = processes.Pipe(duplex=False)
        process = processes.Process(target=_be_test, args=(test.__name__, given, os.getcwd(), tell))
        process.start()
        tell.close()
        with told:
            try:
                failure = told.recv()
            except EOFError:
                failure = "its process ended"
            process.join()
        assert failure is None, failure

    return run


def _be_test(name, given, directory, tell):
    sys.path.insert(0, str(HERE.parents[1]))
    os.chdir(directory)
    try:
        getattr(importlib.import_module("tests.testing.test_crashes"), name).__wrapped__(**given)
    except BaseException:
        tell.send(traceback.format_exc())
    else:
        tell.send(None)


@functools.cache
def _planted():
    spec = importlib.util.spec_from_file_location("planted_mistakes", HERE / "planted.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FOUND = {
    "effect_before_checkpoint": (
        "ran_twice",
        "`send` ran twice: the process died after it and before its checkpoint. Mark it at_most_once or claim its effect.",
    ),
    "appended_file": (
        "ran_twice",
        "`append` ran twice, and sent.log differs: the process died after it and before its",
    ),
    "unclaimed_file": (
        "lost_file",
        "`write` wrote orders.csv, which nothing claims: with the file lost after a crash,",
    ),
    "time_in_an_argument": (
        "nondeterministic",
        "`stamp` got other arguments when the code of the workflow ran again, at",
    ),
    "set_order": ("nondeterministic", "got other arguments when the code of the workflow ran again, at"),
    "cached_global": (
        "kept_in_memory",
        "the process died after `total` ran and before its result was saved, and the output is 0 and not 6: a step changes",
    ),
    "swallowed_failure": (
        "swallowed_failure",
        "`fetch` failed once, and the run completed anyway: the output is 0",
    ),
    "wait_answered_twice": (
        "answered_twice",
        "`review[1]` took the answer to `review`: the same message was sent twice",
    ),
}


@pytest.mark.parametrize("name", FOUND)
@in_a_small_process
def test_a_planted_mistake_is_found_and_explained(name):
    planted = _planted()
    with pytest.raises(CrashesFoundError) as found:
        explore_crashes(getattr(planted, name), answers={"review": ["a", "b"]})
    mistake, message = FOUND[name]
    first, *others = found.value.report.findings
    assert (first.mistake, others) == (mistake, [])
    assert message in first.message, first
    assert message in str(found.value)
    assert planted.outbox == [] and planted.cache == {} and [*Path.cwd().iterdir()] == []  # all of it was undone


@in_a_small_process
def test_a_workflow_without_a_mistake_has_no_finding():
    Path("orders.csv").write_text("of another day")
    report = explore_crashes(_planted().without_a_mistake, answers={"word": "go"})
    assert report.findings == () and report.steps == 3 and report.histories > 20
    assert Path("orders.csv").read_text() == "of another day"


@in_a_small_process
def test_a_step_that_may_fail_is_named():
    assert explore_crashes(_planted().swallowed_failure, may_fail=["fetch"]).findings == ()


def test_a_post_request_that_is_repeated_is_an_effect():
    import http.server
    import threading
    import urllib.request

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_):
            pass

    def asked(url: str, data: str | None) -> int:
        with urllib.request.urlopen(urllib.request.Request(url, data.encode() if data else None)) as answer:
            return answer.status

    @workflow
    def posts(url: str, data: str | None):
        return (yield step("post").python(asked, url, data).checkpoint())

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        with pytest.raises(CrashesFoundError, match="`post` ran twice"):
            explore_crashes(posts, url=f"http://127.0.0.1:{server.server_port}/", data="order 1")
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def test_a_command_that_appends_is_found_and_undone(tmp_path):
    (tmp_path / "log").write_text("before\n")

    @workflow
    def commands():
        yield step("append").command(["sh", "-c", "echo sent >> log"]).checkpoint()

    with pytest.raises(CrashesFoundError, match="`append` ran twice, and log differs"):
        explore_crashes(commands)
    assert (tmp_path / "log").read_text() == "before\n"


@in_a_small_process
def test_what_a_step_names_by_bytes_or_a_path_object_is_restored():
    Path("old").mkdir()
    Path("old/list.txt").write_text("before")

    def change():
        with contextlib.closing(sqlite3.connect(Path("shop.db"))) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS orders (number)")
        shutil.rmtree(b"old", ignore_errors=True)

    @workflow
    def changes():
        yield step("change").python(change).checkpoint()

    with pytest.raises(CrashesFoundError, match="`change` wrote shop.db, which nothing claims"):
        explore_crashes(changes)
    assert not Path("shop.db").exists()
    assert Path("old/list.txt").read_text() == "before"


def test_a_request_whose_body_comes_in_parts_is_observed_without_an_error(tmp_path):
    log = tmp_path / "log.jsonl"
    guard = Guard(tmp_path, Log(log))
    guard._on_audit_event("http.client.send", (None, iter([b"part"])))
    guard._on_audit_event("http.client.send", (None, b"PUT /a HTTP/1.1\r\n"))
    guard._on_audit_event("http.client.send", (None, b"GET /a HTTP/1.1\r\n"))
    assert [each["sent"] for each in read_lines(log)] == ["a PUT request"]


@in_a_small_process
def test_a_run_that_cannot_complete_is_refused():
    with pytest.raises(FlowckptError, match="waits for 'review', which has no answer"):
        explore_crashes(_planted().wait_answered_twice)
    with pytest.raises(InputError):
        explore_crashes(_planted().set_order, size=3)

    @workflow
    def fails():
        yield step("one").python(int, "x")

    with pytest.raises(FlowckptError, match="the uninterrupted run of 'fails' ended as failed: StepFailedError"):
        explore_crashes(fails)


def _folder() -> Path:
    folder = Path("inbox")
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(f"{name} and more words\n")
    return folder


def _data(module) -> dict:
    module.make_data(Path("calls"))
    return {"folder": Path("calls")}


CLEAN = {
    "quickstart": ("etl", lambda _: {"pages": 1, "target": Path("report.txt")}, {}),
    "release": ("release", lambda _: {"lines": 2}, {"release": True, "mirrored": {"servers": 3}}),
    "archive_files": ("archive_files", lambda _: {"inbox": _folder(), "archive": Path("archive").resolve()}, {}),
    "checksum_tree": ("checksum_tree", lambda _: {"folder": _folder(), "manifest": Path("manifest")}, {}),
    "text_statistics": ("text_statistics", lambda _: {"texts": sorted(_folder().iterdir())}, {}),
    "mandelbrot_rows": ("mandelbrot", lambda _: {"height": 2, "depth": 5}, {}),
    "count_primes": ("count_primes", lambda _: {"limit": 10_000}, {}),
    "variant_calls": ("variant_calls", _data, {}),
    "stdlib_index": ("stdlib_index", lambda _: {"limit": 2, "batch_size": 2, "tests": False}, {}),
}


QUICK = {"quickstart", "archive_files", "mandelbrot_rows"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.soak] * (name not in QUICK)) for name in CLEAN])
@in_a_small_process
def test_the_examples_have_no_mistake(name):
    workflow_name, inputs, answers = CLEAN[name]
    sys.path.insert(0, str(EXAMPLES))  # as a run of the file does, for the workers, too
    module = importlib.import_module(name)
    if name == "quickstart":
        module.time = SimpleNamespace(sleep=lambda seconds: None)  # its slow server
    report = explore_crashes(getattr(module, workflow_name), answers=answers, **inputs(module))
    assert report.findings == ()
    assert report.histories > 5
