"""A step that failed and rests: the run is suspended, and `recover` tries it again when it is due."""

from __future__ import annotations

PATIENT = """
from pathlib import Path
from flowckpt import current_step, step, workflow

def deliver():
    with open("log", "a") as file:
        file.write(f"try {current_step().tries}\\n")
    if current_step().tries < 3:
        raise ConnectionError("closed")

@workflow
def patient():
    yield step("deliver").python(deliver).retry(None, backoff=0.05, factor=1)
"""


def test_a_resting_step_is_shown_and_recovered(flowckpt):
    (flowckpt.directory / "patient.py").write_text(PATIENT)
    ran = flowckpt("run", "patient.py", "--id", "p", "--stay", "0").expect(3)
    assert "deliver waits after ConnectionError until" in ran.out and "to be tried again" in ran.out
    assert "waits after ConnectionError" in flowckpt("plan", "p").out
    assert flowckpt("list", "--json").document[0]["waits"][0]["kind"] == "retry"
    assert flowckpt.log() == ["try 1"]
    for _ in range(1000):  # the wait of 0.05 s, however slow the machine is
        if len(flowckpt.log()) == 3:
            break
        flowckpt("recover", "--once")
    assert flowckpt.log() == ["try 1", "try 2", "try 3"]
    assert flowckpt("show", "p", "--json").document["status"] == "completed"


FINAL = """
from flowckpt import step, workflow
from flowckpt.errors import FinalError

def ship():
    with open("log", "a") as file:
        file.write("ship\\n")
    raise FinalError("the order was withdrawn")

@workflow
def ordering():
    yield step("one").python(abs, -1).checkpoint()
    yield step("ship").python(ship).retry(None)
"""


def test_a_final_failure_offers_no_resume(flowckpt):
    (flowckpt.directory / "final.py").write_text(FINAL)
    ran = flowckpt("run", "final.py", "--id", "f").expect(1)
    assert "The failure is final: a resume is refused." in ran.err and "Resume with" not in ran.err
    ran = flowckpt("resume", "f").expect(1)
    assert "its failure is final: step 'ship' with flowckpt.errors.FinalError: the order was withdrawn" in ran.err
    ran = flowckpt("plan", "f").expect(1)
    assert "its failure is final" in ran.out and "--from STEP" in ran.out and "Resume with" not in ran.out
    assert flowckpt.log() == ["ship"]
    flowckpt("resume", "f", "--from", "ship").expect(1)
    assert flowckpt.log() == ["ship", "ship"]
