"""`flowckpt report` writes one file that says what happened, and nothing in it can do harm."""

from __future__ import annotations

import os
import re
import stat
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest


class _Page(HTMLParser):
    """The elements and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts, self._open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self._open.append(tag)

    def handle_endtag(self, tag):
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data):
        if "script" not in self._open and "style" not in self._open:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def report_of(command, run, *options):
    command("report", run, *options).expect(0)
    return (command.directory / f"{run}.html").read_text(encoding="utf-8")


def test_the_first_sentence_says_what_happened(etl):
    page = _Page(report_of(etl, "one"))
    assert re.search(
        r"Completed after \d.* of work in 3 attempts.*\. Crashed once \(in publish\)\. 32 results reused, 5 steps executed\.",
        page.text,
    )


def test_a_failed_run_is_told_with_its_error_and_traceback(etl):
    etl.directory.joinpath("parsed").unlink()
    etl("run", "pipeline.py", "--id", "bad").expect(1)
    text = _Page(report_of(etl, "bad")).text
    assert "Failed in parse" in text and "ValueError" in text


def test_the_file_can_be_read_by_its_owner_alone_and_follows_no_link(etl):
    report_of(etl, "one")
    assert stat.S_IMODE((etl.directory / "one.html").stat().st_mode) == 0o600
    (etl.directory / "target").write_text("keep")
    (etl.directory / "link.html").symlink_to("target")
    failed = etl("report", "one", "-o", "link.html")
    assert failed.code == 2 and "link.html cannot be written" in failed.err
    assert (etl.directory / "target").read_text() == "keep"
    assert etl("graph", "one", "-o", "link.html").code == 2 and (etl.directory / "target").read_text() == "keep"


def test_an_earlier_file_is_replaced_by_one_for_its_owner_alone(etl):
    for number, command in enumerate((("report", "one"), ("graph", "one", "--format", "svg"))):
        file = etl.directory / f"{number}.html"
        file.write_text("old")
        file.chmod(0o644)
        etl(*command, "-o", file.name).expect(0)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and "old" not in file.read_text()[:10]
        for missing in ("nowhere/x.html", "."):
            failed = etl(*command, "-o", missing).expect(2)
            assert f"{missing} cannot be written" in failed.err
        failed = etl(*command, "-o", "/dev/full").expect(74)
        assert failed.err == "flowckpt: /dev/full cannot be written: No space left on device\n"


@pytest.mark.parametrize("run", ["../evil", "/tmp/evil", ".hidden", "a/b", "x" * 120])
def test_the_id_of_a_run_leads_to_no_other_directory(etl, run):
    etl("run", "pipeline.py", f"--id={run}").expect(0)
    outside = {*etl.directory.parent.iterdir()}
    before = {*etl.directory.iterdir()}
    etl("report", "--", run).expect(0)
    (written,) = {*etl.directory.iterdir()} - before
    assert written.suffix == ".html" and not written.name.startswith(".") and len(written.name) < 100
    assert {*etl.directory.parent.iterdir()} == outside


def test_a_damaged_earlier_run_is_left_out_of_the_comparison(etl):
    (segment,) = (etl.directory / ".flowckpt/runs/usual").glob("*.jsonl")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0x55
    segment.write_bytes(data)
    ran = etl("report", "one").expect(0)
    assert "run usual is not compared: the record of run 'usual' is corrupt" in ran.err


def test_a_run_that_has_not_ended_has_no_removed_steps(etl):
    (etl.directory / "published").unlink()
    etl("run", "pipeline.py", "--id", "dead").expect(-9)
    text = _Page(report_of(etl, "dead")).text
    assert re.search(r"Crashed after .*\. Crashed once \(in publish\)\.", text)
    assert "Code, inputs and steps are the same" in text and "removed" not in text


def test_a_rollback_is_not_an_attempt_of_work(etl):
    etl("run", "pipeline.py", "--id", "back").expect(0)
    etl("rollback", "back", "fetch").expect(0)
    text = _Page(report_of(etl, "back")).text
    assert re.search(r"of work in 1 attempt( over .*)?\. 1 step executed, 36 results no longer count\.", text)


def test_markup_from_a_run_stays_text(etl):
    text = report_of(etl, "one")
    page = _Page(text)
    assert "<script>alert(1)" not in text and "</script><script>" not in text
    assert page.tags.count("script") == 4 and "b" not in page.tags
    assert not [name for _, name, _ in page.attributes if name.startswith("on") or name == "style"]


def test_nothing_in_the_page_names_another_host(etl):
    page = _Page(report_of(etl, "one"))
    asked = [(tag, value) for tag, name, value in page.attributes if name in ("src", "href", "action", "data")]
    assert asked == []
    policy = next(
        value for tag, name, value in page.attributes if (tag, name) == ("meta", "content") and "src" in value
    )
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy and "http" not in policy


def test_secrets_are_not_in_a_report(flowckpt_with_secret):
    text = report_of(flowckpt_with_secret, "hidden")
    assert "hunter2-of-the-company" not in text


@pytest.fixture
def flowckpt_with_secret(etl):
    (etl.directory / "secret.py").write_text(
        """
from flowckpt import Secret, step, workflow

def login(token):
    return {"token": token.reveal(), "ok": True}

@workflow("login")
def main(token: Secret[str]):
    return (yield step("login").python(login, token))
"""
    )
    (etl.directory / "token").write_text("hunter2-of-the-company")
    etl("run", "secret.py", "--id", "hidden", "-i", "token=@file:token")
    return etl


def test_what_became_slower_and_what_changed_is_listed(etl):
    file = etl.directory / "pipeline.py"
    file.write_text(
        file.read_text().replace("def load(pages, path):", "def load(pages, path):\n    import time; time.sleep(0.3)")
    )
    etl("run", "pipeline.py", "--id", "slow", "-i", "source=other").expect(0)
    text = _Page(report_of(etl, "slow")).text
    slower = text[text.index("Compared with earlier runs") :]
    assert re.search(r"Slower Step This run Median Runs load 0\.[34] s \d+ ms 2", slower)
    assert "the code of step load" in slower and "input source: changed" in slower
    assert "Completed runs of the same workflow: one , usual ." in slower


USES = """
from flowckpt import step, workflow
import installed

def use(n):
    if n > 1:
        raise ValueError("long " * 200)
    return installed.work(n)

@workflow("uses")
def main(n: int = 1):
    yield step("say").command(["printf", "one\\ntwo"])
    return (yield step("use").python(use, n))
"""


def test_another_version_of_a_package_is_a_change_and_a_long_error_is_folded(etl):
    libraries = etl.directory / "site-packages"
    libraries.mkdir()
    (libraries / "installed.py").write_text("def work(n):\n    return n\n")
    (libraries / "installed-1.0.dist-info").mkdir()
    (etl.directory / "uses.py").write_text(USES)
    path = {"PYTHONPATH": os.pathsep.join([os.getcwd(), str(libraries)])}
    etl("run", "uses.py", "--id", "before", **path).expect(0)
    (libraries / "installed-1.0.dist-info").rename(libraries / "installed-2.0.dist-info")
    etl("run", "uses.py", "--id", "after", "-i", "n=2", **path).expect(1)
    page = report_of(etl, "after")
    assert "package installed: 1.0 → 2.0" in _Page(page).text
    assert re.search(r'<details class="error"><summary>ValueError: long [^<]*…</summary><pre', page)
    assert '"stdout":"one\\ntwo"' in page and '"exit code":"0"' in page


def test_figures_are_shown_with_their_steps_and_compared(etl):
    (etl.directory / "counts.py").write_text(
        """
from flowckpt import current_step, step, workflow

def count(tokens):
    current_step().record(tokens=tokens, cost=0.25)

@workflow("counts")
def main(tokens: int):
    yield step("one").python(count, tokens)
    yield step("two").python(count, 2 * tokens)
"""
    )
    etl("run", "counts.py", "--id", "c1", "-i", "tokens=400").expect(0)
    etl("run", "counts.py", "--id", "c2", "-i", "tokens=500").expect(0)
    page = report_of(etl, "c2")
    text = _Page(page).text
    assert "figure tokens 1,500" in text and '"figures":{"tokens":"1,000","cost":"0.25"}' in page
    assert "Figures Figure This run Median tokens 1,500 1,200 cost 0.5 0.5" in text


def test_the_plan_is_shown_on_request(etl):
    file = etl.directory / "pipeline.py"
    file.write_text(file.read_text().replace("return len(pages)\n\n@", "return len(pages) + 0\n\n@"))
    page = report_of(etl, "one", "--plan")
    assert re.search(r"A resume would (reuse 33 results and run 1 step|stop: load: )", _Page(page).text)
    assert 'class="node state-rerun" data-path="load"' in page
    assert re.search(r"Steps that a resume would run Step Decision Reason load rerun code: load\(\)", _Page(page).text)
    drawn = etl("graph", "one", "--plan", "--format", "svg").expect(0)
    assert 'class="node state-rerun" data-path="load"' in drawn.out and "A resume would" in drawn.err
    text = etl("graph", "one", "--plan").expect(0).out
    (name,) = re.findall(r'(n\d+)\["load: code', text)
    assert f"style {name} stroke-width:4px" in text
    assert "penwidth=3" in etl("graph", "one", "--plan", "--format", "dot").expect(0).out
    assert "--plan needs a run" in etl("graph", "pipeline.py", "--plan").expect(2).err


def test_a_report_can_go_to_standard_output(etl):
    assert etl("report", "one", "-o", "-").expect(0).out.startswith("<!doctype html>")


def test_the_picture_is_wellformed_xml_whatever_the_names_are(etl):
    (etl.directory / "odd.py").write_text(
        """
from flowckpt import step, workflow

@workflow("odd <&\\" name")
def main():
    for name in ("<script>", "a & b", "c\\x00d\\x1b[31m", "\\u202eevil", "x" * 300):
        yield step(name).python(str, name)
"""
    )
    etl("run", "odd.py", "--id", "odd").expect(0)
    for form in ("svg", "dot", "mermaid"):
        out = etl("graph", "odd", "--format", form).expect(0).out
        assert "\x1b" not in out and "\u202e" not in out
        if form == "svg":
            assert "<script>" not in out
            ET.fromstring(out)
    page = report_of(etl, "odd")
    assert "\x1b" not in page.split("<script type")[0] and "<script>alert" not in page


def test_a_run_that_waits_says_for_what(etl):
    (etl.directory / "waits.py").write_text(
        """
from flowckpt import step, workflow

@workflow("waits")
def main():
    yield step("first").python(abs, -1).checkpoint()
    yield step("ask").approval("review")
"""
    )
    etl("run", "waits.py", "--id", "waits").expect(3)
    text = _Page(report_of(etl, "waits")).text
    assert "Suspended after" in text and "ask waits for the approval 'review'" in text
