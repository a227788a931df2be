"""Runs that wait, from the shell: suspended with exit code 3, and continued by the commands that were shown."""

from __future__ import annotations

import json
import signal
import time
from subprocess import DEVNULL

import pytest

PROGRAM = """
from pathlib import Path
from flowckpt import step, workflow
from flowckpt.evidence import file_sha256

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")
    return line

@workflow
def naps():
    yield step("before").python(note, "before").checkpoint()
    yield step("nap").sleep(86_400)

@workflow
def asks():
    data = yield step("ask").wait("go")
    yield step("take").python(note, f"took {data}").checkpoint()
    more = yield step("again").wait("go", timeout=0, default="nothing more")
    return [data, more]

def write():
    Path("report").write_text("good")

@workflow
def reviewed():
    yield step("write").python(write).checkpoint()
    found = yield step("review").approval(of=[file_sha256("report")])
    yield step("publish").python(note, f"published by {found.by}: {found.comment}").checkpoint()
"""


PROGRAM += """
def overwrite():
    if not Path("log").exists():
        Path("report").write_text("bad")
    return note("slow")

@workflow
def slowly():
    yield step("write").python(write).checkpoint()
    yield step("review").approval(of=[file_sha256("report")])
    yield step("slow").python(overwrite)
    yield step("use").python(note, "use")

@workflow
def typed():
    return (yield from step("ask").wait("go", type=int))

def fail():
    raise ValueError("no")

@workflow
def fails():
    yield step("fail").python(fail)
    yield step("ask").wait("go")
"""


@pytest.fixture
def waits(flowckpt):
    (flowckpt.directory / "waits.py").write_text(PROGRAM)
    return flowckpt


def test_a_long_sleep_ends_the_command_with_3_and_the_time(waits):
    ran = waits("run", "waits.py:naps", "--id", "r").expect(3)
    assert "waiting: nap sleeps until 20" in ran.out
    assert "Resume with: flowckpt resume r, from 20" in ran.err
    document = waits("resume", "r", "--json").expect(3).document
    assert (document["status"], document["output"], document["error"]) == ("suspended", None, None)
    [wait] = document["waits"]
    assert (wait["path"], wait["kind"]) == ("nap", "sleep")
    [listed] = waits("list", "--status", "suspended", "--json").expect(0).document
    assert (listed["workflow_id"], listed["due_at"]) == ("r", wait["due_at"])
    shown = waits("show", "r", "--json").expect(0).document
    assert shown["waits"] == document["waits"]
    assert waits.log() == ["before"]


def test_resumes_that_find_nothing_new_leave_the_store_as_it_was(waits):
    waits("run", "waits.py:asks", "--id", "r").expect(3)

    def stored():
        store = waits.directory / ".flowckpt"
        return {file: file.read_bytes() for file in store.rglob("*.jsonl")}

    before = stored()
    for _ in range(2):
        waits("resume", "r").expect(3)
        waits("plan", "r").expect(0)
    assert stored() == before


def test_a_signal_is_kept_told_and_taken_once(waits):
    ran = waits("run", "waits.py:asks", "--id", "r").expect(3)
    assert "Send it with: flowckpt signal r go" in ran.err
    sent = waits("signal", "r", "go", "--data", '{"rows": [1]}', "--by", "ann", "--id", "monday", "--json").expect(0)
    assert {key: sent.document[key] for key in ("signal_id", "is_new", "is_awaited", "status")} == {
        "signal_id": "monday",
        "is_new": True,
        "is_awaited": True,
        "status": "suspended",
    }
    again = waits("signal", "r", "go", "--id", "monday").expect(0)
    assert "already sent under the id monday" in again.out
    second = waits("signal", "r", "go").expect(0)
    assert "1 earlier signal of this name is still pending" in second.err
    assert "signal not taken yet: go by ann" in waits("show", "r").expect(0).out
    done = waits("resume", "r", "--json").expect(0).document
    assert done["output"] == [{"rows": [1]}, None]
    assert waits.log() == ["took {'rows': [1]}"]
    taken = waits("signal", "r", "go", "--id", "monday", "--data", '"other"').expect(0)
    assert (taken.out, taken.err) == ("already sent under the id monday\n", "")
    assert waits("recover", "--json").expect(0).document["runs"] == []
    late = waits("signal", "r", "go").expect(2)
    assert "the run is complete" in late.err


def test_an_answer_to_a_question_that_is_over_is_refused(waits, tmp_path):
    waits("run", "waits.py:reviewed", "--id", "r").expect(3)
    (wait,) = waits("show", "r", "--json").document["waits"]
    (tmp_path / "report").write_text("better")
    waits("resume", "r").expect(3)
    (again,) = waits("show", "r", "--json").document["waits"]
    refused = waits("approve", "r", "review", "--request", wait["request"]).expect(2)
    assert f"the request '{wait['request']}' is over, and the run now asks '{again['request']}'" in refused.err
    waits("approve", "r", "review", "--request", again["request"]).expect(0)


def test_bytes_that_change_between_the_approval_and_their_use_end_the_command_with_3_and_are_asked_for_anew(waits):
    waits("run", "waits.py:slowly", "--id", "r").expect(3)
    waits("approve", "r", "review", "--by", "ann").expect(0)
    ran = waits("resume", "r").expect(3)
    assert "review: the approval by ann is void and is asked for again" in ran.err
    assert "asked again: report: sha256" in ran.out
    assert "Approve with: flowckpt approve r review" in ran.err
    assert waits.log() == ["slow"]
    assert "asked again" in waits("show", "r").expect(0).out
    assert "it is void" in waits("plan", "r").out
    waits("approve", "r", "review", "--by", "bob", "--resume").expect(0)
    assert waits.log() == ["slow", "slow", "use"]


def test_data_of_another_type_are_refused_before_they_are_sent(waits):
    waits("run", "waits.py:typed", "--id", "r").expect(3)
    assert "its data is 'no' (str), not int" in waits("signal", "r", "go", "--data", '"no"').expect(2).err
    assert waits("show", "r", "--json").expect(0).document["signals"] == []
    waits("signal", "r", "go", "--data", "7", "--resume").expect(0)


def test_a_signal_to_a_run_that_has_failed_or_was_cancelled_is_kept_for_a_resume_and_that_is_told(waits):
    waits("run", "waits.py:fails", "--id", "f").expect(1)
    told = waits("signal", "f", "go").expect(0).err
    assert "The run has failed, so the signal is kept until a resume reaches a wait" in told
    waits("run", "waits.py:asks", "--id", "c").expect(3)
    waits("cancel", "c").expect(0)
    told = waits("signal", "c", "go", "--data", "7").expect(0).err
    assert "The run was cancelled, so the signal is kept" in told
    assert waits("resume", "c", "--json").expect(0).document["output"][0] == 7


def test_what_cannot_be_sent_is_told(waits):
    waits("run", "waits.py:asks", "--id", "r").expect(3)
    assert "--data is not JSON" in waits("signal", "r", "go", "--data", "yes").expect(2).err
    assert "no run 'nope'" in waits("signal", "nope", "go").expect(12).err
    assert "is not waiting for this approval" in waits("approve", "r", "nope").expect(2).err
    refused = waits("approve", "r", "go").expect(2).err
    assert "it is waiting for the signal 'go', not for an approval" in refused
    assert "Send it with 'flowckpt signal r go'." in refused
    assert waits("show", "r", "--json").expect(0).document["signals"] == []


def test_an_approval_shows_and_checks_the_bytes_and_may_resume_at_once(waits):
    ran = waits("run", "waits.py:reviewed", "--id", "r").expect(3)
    assert "Approve with: flowckpt approve r review" in ran.err
    assert "to approve: the content of report: " in waits("show", "r").expect(0).out
    (waits.directory / "report").write_text("evil")
    assert "has changed since" in waits("approve", "r", "review").expect(10).err
    (waits.directory / "report").write_text("good")
    waits("approve", "r", "review", "--by", "ann", "--comment", "fine", "--resume").expect(0)
    assert waits.log() == ["published by ann: fine"]


def test_a_rejection_fails_the_run_and_a_resume_asks_again(waits):
    waits("run", "waits.py:reviewed", "--id", "r").expect(3)
    ran = waits("reject", "r", "review", "--by", "ann", "--comment", "no", "--resume").expect(1)
    assert "was rejected by ann: no" in ran.err
    waits("resume", "r").expect(3)


def wait_until_suspended(waits):
    for _ in range(2400):
        if '"suspended"' in waits("list", "--json").out:
            return
        time.sleep(0.05)
    raise AssertionError("it is not suspended")


def test_a_process_that_stays_takes_a_signal_of_another_process(waits):
    staying = waits.start("run", "waits.py:asks", "--id", "r", "--stay", "600", "--json")
    try:
        wait_until_suspended(waits)
        sent = waits("signal", "r", "go", "--data", "5").expect(0)
        assert "The run is live and will take it" in sent.err
        out, err = staying.communicate(timeout=120)
    finally:
        staying.kill()
    assert staying.returncode == 0, err
    assert json.loads(out)["output"] == [5, "nothing more"]


def test_a_process_that_stays_is_stopped_by_a_signal_of_the_system_and_keeps_its_waits(waits):
    staying = waits.start("run", "waits.py:naps", "--id", "r", "--stay", "inf", stdout=DEVNULL, stderr=DEVNULL)
    try:
        waits.wait_for("before")
        wait_until_suspended(waits)
        due = waits("show", "r", "--json").document["waits"][0]["due_at"]
        staying.send_signal(signal.SIGTERM)
        assert staying.wait(120) == 143
    finally:
        staying.kill()
    assert waits("resume", "r", "--json").expect(3).document["waits"][0]["due_at"] == due


@pytest.mark.parametrize("delay", [0.0, 0.2])
def test_a_signal_survives_a_kill_between_its_arrival_and_its_use_and_is_taken_once(waits, delay):
    staying = waits.start("run", "waits.py:asks", "--id", "r", "--stay", "600", stdout=DEVNULL, stderr=DEVNULL)
    try:
        wait_until_suspended(waits)
        waits("signal", "r", "go", "--data", "5").expect(0)
        time.sleep(delay)
        staying.kill()
        staying.wait(120)
    finally:
        staying.kill()
    document = waits("resume", "r", "--json").expect(0).document
    assert document["output"] == [5, "nothing more"]
    assert set(waits.log()) == {"took 5"}
    assert waits("show", "r", "--json").document["signals"] == []


def test_why_says_what_a_waiting_step_waits_for(waits):
    waits("run", "waits.py:asks", "--id", "r").expect(3)
    assert "waits for the signal 'go'" in waits("plan", "r", "ask").out


SIGNALS = """
from flowckpt import step, workflow
import attrs

@attrs.frozen
class Order:
    number: int

@workflow
def shop():
    yield step("go").wait("go")
    order = yield from step("order").wait("order", type=Order)
    return order.number
"""


def test_a_signal_that_does_not_fit_never_fails_the_run(flowckpt):
    (flowckpt.directory / "shop.py").write_text(SIGNALS)
    flowckpt("run", "shop.py", "--id", "r").expect(3)
    flowckpt("signal", "r", "order", "--data", '{"number": "seven"}', "--id", "wrong").expect(0)
    flowckpt("signal", "r", "go").expect(0)
    resumed = flowckpt("resume", "r").expect(3)
    assert "order: signal order is set aside; the step waits for another one: " in resumed.err
    assert "warning: run r: the signal 'order'" in resumed.err and "(id wrong)" in resumed.err
    shown = flowckpt("show", "r").expect(0)
    assert "signal set aside: it does not fit: order by " in shown.out and "seven" in shown.out
    document = flowckpt("show", "r", "--json").expect(0).document
    assert ([each["signal_id"] for each in document["signals_set_aside"]], document["signals"]) == (["wrong"], [])
    again = flowckpt("resume", "r").expect(3)
    assert "set aside" not in again.err
    for data, said in (('{"number": "seven"}', "number is 'seven'"), ("7", "not Order"), ("{}", "has no 'number'")):
        refused = flowckpt("signal", "r", "order", "--data", data).expect(2)  # the run waits for it: the type is known
        assert "was not sent" in refused.err and said in refused.err
    flowckpt("signal", "r", "order", "--data", '{"number": 7}').expect(0)
    assert flowckpt("resume", "r", "--json").expect(0).document["output"] == 7


def test_a_signal_that_nothing_ever_asked_for_is_warned_of(flowckpt):
    (flowckpt.directory / "shop.py").write_text(SIGNALS)
    flowckpt("run", "shop.py", "--id", "r").expect(3)
    misspelt = flowckpt("signal", "r", "og").expect(0)
    assert "warning: run r has never waited for the signal 'og'; it is waiting for 'go'" in misspelt.err
    assert "the signal is kept until it does" in misspelt.err and "Resume with" not in misspelt.err
    awaited = flowckpt("signal", "r", "go").expect(0)
    assert "warning" not in awaited.err and "Resume with: flowckpt resume r" in awaited.err
    flowckpt("resume", "r").expect(3)
    assert "warning" not in flowckpt("signal", "r", "go").expect(0).err  # asked for before
    assert "warning" in flowckpt("signal", "r", "oder").expect(0).err


def test_the_list_shows_what_a_run_waits_for_and_which_process_runs_it(flowckpt):
    (flowckpt.directory / "shop.py").write_text(SIGNALS)
    flowckpt("run", "shop.py", "--id", "waits").expect(3)
    running = flowckpt.start("run", "pipeline.py:naps", "-i", "seconds=600", "--id", "runs")
    flowckpt.wait_for("start 0")
    table = flowckpt("list", COLUMNS="200").expect(0).out
    assert "waits for the signal 'go'" in table
    assert f"process {running.pid} on " in table
    listed = {each["workflow_id"]: each for each in flowckpt("list", "--json").document}
    assert [wait["name"] for wait in listed["waits"]["waits"]] == ["go"] and listed["runs"]["waits"] == []
    assert listed["runs"]["owner"]["pid"] == running.pid
    running.kill()
    running.communicate(timeout=120)


ASKING = """
from flowckpt import parallel, step, workflow

@workflow
def asking(amount: int = 420):
    yield parallel(
        step("pay").approval(ask={"order": "o-17", "amount": amount, "lines": [1, 2]}),
        step("why").wait("reason", ask="Why so late?"),
    )
"""


def test_a_question_is_shown_wherever_it_is_answered(flowckpt):
    (flowckpt.directory / "asking.py").write_text(ASKING)
    lines = ["  order: o-17", "  amount: 420", "  lines: [1, 2]", "  Why so late?"]
    ran = flowckpt("run", "asking.py", "--id", "q").expect(3)
    shown = flowckpt("show", "q").expect(0).out
    for line in lines:
        assert line in ran.out.splitlines() and line in shown.splitlines()
    waits = flowckpt("list", "--json").document[0]["waits"]
    assert [each["ask"] for each in waits] == [{"order": "o-17", "amount": 420, "lines": [1, 2]}, "Why so late?"]
    flowckpt("approve", "q", "pay").expect(0)
    flowckpt("signal", "q", "reason", "--data", '"rain"').expect(0)
    flowckpt("resume", "q").expect(0)


def test_another_question_asks_again(flowckpt):
    file = flowckpt.directory / "asking.py"
    file.write_text(ASKING.replace("parallel(", "parallel(step('one').python(abs, -1), "))
    flowckpt("run", "asking.py", "--id", "q").expect(3)
    file.write_text(file.read_text().replace('"o-17"', '"o-18"'))
    flowckpt("resume", "q").expect(3)
    assert "  order: o-18" in flowckpt("show", "q").out.splitlines()


def test_a_question_that_cannot_be_recorded_fails_the_step(flowckpt):
    (flowckpt.directory / "asking.py").write_text(ASKING.replace('"Why so late?"', "object()"))
    assert "parallel/[why]: ask" in flowckpt("run", "asking.py", "--id", "q").expect(1).err
