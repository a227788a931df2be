"""`command_exit`, `process_exists`, `container_running`, `predicate`: true, false, missing, malformed, hostile."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading

import attrs
import pytest

from flowckpt.core.system import process
from flowckpt.evidence import (
    Evidence,
    EvidenceCaptureError,
    EvidenceError,
    EvidenceType,
    EvidenceVerifier,
    Limits,
    StepFacts,
    command_exit,
    container_running,
    predicate,
    process_exists,
    register_predicate,
)

# --- command_exit: pitfall 30 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "ran", "noted", "status"),
    [
        (0, 0, None, "verified"),
        (0, None, 0, "verified"),
        (0, 0, 0, "verified"),
        (3, 3, None, "verified"),
        (-9, -9, None, "verified"),
        (0, 1, None, "failed"),
        (0, 137, None, "failed"),
        (1, 137, None, "failed"),
        (137, -9, None, "failed"),
        (-9, 137, None, "failed"),
        (0, 1, 0, "failed"),  # what really ran counts
        (0, 0, 1, "failed"),
        (0, None, None, "cannot_check"),
        (True, 1, None, "malformed"),
        (False, 0, None, "malformed"),
        (1, True, None, "malformed"),
        (0, None, False, "malformed"),
        (0, "0", None, "malformed"),
        (0, None, 0.0, "malformed"),
        ("0", 0, None, "malformed"),
        (None, 0, None, "malformed"),
        (0.0, 0, None, "malformed"),
        ([0], 0, None, "malformed"),
        (10**30, 0, None, "malformed"),
    ],
)
async def test_command_exit(verifier, wanted, ran, noted, status):
    metadata = {} if noted is None else {"actual_exit_code": noted}
    claim = Evidence(EvidenceType.COMMAND_EXIT, "exit", {"exit_code": wanted}, metadata)
    verdict = await verifier.verify_evidence(claim, facts=StepFacts(exit_code=ran))
    assert (verdict.status, verdict.verified) == (status, status == "verified")


@pytest.mark.parametrize("code", [True, "0", None, 0.0])
def test_a_promised_exit_code_is_a_number(code):
    with pytest.raises(EvidenceError):
        command_exit(code)


async def test_verifying_runs_nothing(base, verifier):
    claim = Evidence(EvidenceType.COMMAND_EXIT, "exit", {"exit_code": 0, "command": f"touch {base}/ran"})
    await verifier.verify_evidence(claim)
    assert os.listdir(base) == []


# --- process_exists --------------------------------------------------------------------------------------------------


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


async def test_a_process_lives_until_it_is_gone(verifier, child):
    captured = await verifier.capture(process_exists(child.pid))
    assert (await verifier.verify_evidence(captured)).verified
    child.send_signal(signal.SIGSTOP)
    assert (await verifier.verify_evidence(captured)).verified
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie now: dead, and not yet buried
    assert (await verifier.verify_evidence(captured)).status == "failed"
    child.wait()
    verdict = await verifier.verify_evidence(captured)
    assert (verdict.status, verdict.error) == ("failed", f"process {child.pid} is gone")


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, "verified"),
        ({"start_time": 1}, "failed"),  # the pid came again
        ({"boot_id": "00000000-0000-0000-0000-000000000000/machine 1"}, "failed"),
        ({"boot_id": "00000000-0000-0000-0000-000000000000"}, "failed"),  # an older record
        ({"boot_id": "00000000-0000-0000-0000-000000000000/"}, "cannot_check"),  # perhaps another machine of this name
        ({"host": "elsewhere"}, "cannot_check"),
        ({"pid": 1 << 22}, "failed"),
        ({"pid": 0}, "malformed"),
        ({"pid": -1}, "malformed"),
        ({"pid": True}, "malformed"),
        ({"pid": 10**30}, "malformed"),
        ({"pid": "1"}, "malformed"),
        ({"pid": None}, "malformed"),
        ({"start_time": 0}, "malformed"),
        ({"start_time": None}, "malformed"),
        ({"boot_id": ""}, "malformed"),
        ({"host": None}, "malformed"),
    ],
)
async def test_process_exists(verifier, change, status):
    captured = await verifier.capture(process_exists())
    if (boot_id := change.get("boot_id") or "").endswith("/machine 1"):
        machine = process.current_process().system[1]
        change, status = {"boot_id": boot_id.replace("machine 1", machine)}, status if machine else "cannot_check"
    claim = attrs.evolve(captured, expected={**captured.expected, **change})
    assert (await verifier.verify_evidence(claim)).status == status


async def test_a_process_that_is_not_there_cannot_be_captured(verifier, child):
    child.kill()
    child.wait()
    with pytest.raises(EvidenceCaptureError, match="there is no process"):
        await verifier.capture(process_exists(child.pid))


# --- predicate -------------------------------------------------------------------------------------------------------

CALLS = []


def is_even(number, *, offset=0):
    CALLS.append(number)
    return (number + offset) % 2 == 0


async def is_ready(answer=True):
    await asyncio.sleep(0)
    return answer


def answers(what):
    return what


def raises(name):
    raise {"exit": SystemExit, "value": ValueError, "timeout": TimeoutError}[name]("password=hunter2-in-message")


async def waits_for_ever():
    await asyncio.Event().wait()


_never = threading.Event()
_has_ticked = threading.Event()


def sees_ticks():
    return _has_ticked.wait(50)


def blocks():
    return _never.wait(60)


@pytest.mark.parametrize(
    ("claim", "status"),
    [
        (predicate(is_even, 2), "verified"),
        (predicate(is_even, 3), "failed"),
        (predicate(is_even, 3, offset=1), "verified"),
        (predicate(is_ready), "verified"),
        (predicate(is_ready, False), "failed"),
        (predicate(is_ready, "yes"), "cannot_check"),
        (predicate(answers, 1), "cannot_check"),
        (predicate(answers, None), "cannot_check"),
        (predicate(answers, "True"), "cannot_check"),
        (predicate(answers, [1]), "cannot_check"),
        (predicate(answers), "cannot_check"),
        (predicate(raises, "value"), "cannot_check"),
        (predicate(raises, "exit"), "cannot_check"),
        (predicate(raises, "timeout"), "cannot_check"),
        (predicate(waits_for_ever), "timed_out"),
        (predicate(blocks), "timed_out"),
    ],
)
async def test_predicate(base, claim, status):
    is_waited_for = status != "timed_out"  # as long as a busy machine needs
    verifier = EvidenceVerifier(base, limits=Limits(predicate_seconds=60 if is_waited_for else 0.1))
    verdict = await verifier.verify_evidence(claim)
    assert verdict.status == status, verdict.error


@pytest.mark.parametrize(
    "name",
    ["os:system", "os:remove", "builtins:eval", "subprocess:call", "nowhere:nothing", "flowckpt.evidence:EvidenceError",
     "antigravity:x", "", None, 1, "x" * 10_000],
)  # fmt: skip
async def test_a_stored_name_is_never_imported_nor_called(base, verifier, name):
    modules = set(sys.modules)
    claim = Evidence(EvidenceType.PREDICATE, "p", {"function": name, "args": [f"touch {base}/ran"]})
    verdict = await verifier.verify_evidence(claim)
    assert verdict.status in ("cannot_check", "malformed")
    assert not verdict.verified
    assert os.listdir(base) == []
    assert {each for each in set(sys.modules) - modules if not each.startswith("flowckpt.evidence.checks.")} == set()


@pytest.mark.parametrize("facts", [{"args": 3}, {"args": "ab"}, {"kwargs": [1]}, {"kwargs": {1: 2}}])
async def test_malformed_arguments(verifier, facts):
    register_predicate(is_even)
    name = predicate(is_even, 1).expected["function"]
    verdict = await verifier.verify_evidence(Evidence(EvidenceType.PREDICATE, "p", {"function": name, **facts}))
    assert verdict.status == "malformed"


def test_a_function_without_a_name_of_its_own_is_refused():
    def inner():
        return True

    for function in (lambda: True, inner):
        with pytest.raises(EvidenceError, match="not a function with an importable name"):
            predicate(function)
    for value in (object(), 3, None, "the shop is open"):
        with pytest.raises(EvidenceError, match=r"predicate\(\) needs a function, got "):
            predicate(value)


async def test_functions_may_be_passed_to_the_verifier(base):
    import shlex

    claim = Evidence(EvidenceType.PREDICATE, "p", {"function": "shlex:quote", "args": ["a"]})
    assert "not registered" in (await EvidenceVerifier(base).verify_evidence(claim)).error
    verdict = await EvidenceVerifier(base, predicates=[shlex.quote]).verify_evidence(claim)
    assert "returned a str" in verdict.error


async def test_a_blocking_predicate_does_not_block_the_loop(base):
    _has_ticked.clear()

    async def tick():
        for _ in range(5):
            await asyncio.sleep(0.005)
        _has_ticked.set()

    ticking = asyncio.create_task(tick())
    assert (await EvidenceVerifier(base).verify_evidence(predicate(sees_ticks))).verified
    await ticking


# --- container_running -----------------------------------------------------------------------------------------------

has_docker = importlib.util.find_spec("docker") is not None


@pytest.mark.skipif(has_docker, reason="docker is installed")
async def test_without_the_library_the_error_says_what_to_install(verifier):
    verdict = await verifier.verify_evidence(container_running("db"))
    assert (verdict.status, verdict.verified) == ("cannot_check", False)
    assert "pip install 'flowckpt[docker]'" in verdict.error
    with pytest.raises(EvidenceCaptureError, match="docker"):
        await verifier.capture(container_running("db"))


@pytest.mark.parametrize(
    "name", ["../images/json", "a/b", "", "a b", "-a", "a?x=1", "a%2fb", "a\n", None, 1, "x" * 300]
)
async def test_a_name_that_is_none_is_never_sent(verifier, name):
    claim = Evidence(EvidenceType.CONTAINER_RUNNING, "c", {"name": name})
    assert (await verifier.verify_evidence(claim)).status == "malformed"


@pytest.mark.skipif(not has_docker, reason="needs the package 'docker'")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the library forgets a socket
async def test_container_running(base, verifier, server, monkeypatch):
    """The real library against an API that answers as the daemon's does."""
    state = {"Id": "a" * 64, "State": {"Status": "running"}, "Name": "/db", "Image": "i", "Config": {}}

    def answer(document, status=200):
        return status, {"Content-Type": "application/json"}, json.dumps(document).encode()

    def daemon():
        server.answers = {
            "/version": answer({"ApiVersion": "1.43"}),
            "/v1.43/containers/db/json": answer(state),
            "/v1.43/containers/gone/json": answer({"message": "No such container"}, 404),
        }

    daemon()
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.port}")
    captured = await verifier.capture(container_running("db"))
    assert captured.expected == {"name": "db", "id": "a" * 64}
    assert (await verifier.verify_evidence(captured)).verified
    state["Id"] = "b" * 64
    daemon()
    assert "was replaced" in (await verifier.verify_evidence(captured)).error
    state["State"] = {"Status": "exited"}
    daemon()
    assert (await verifier.verify_evidence(captured)).error == "container db is 'exited', not running"
    assert (await verifier.verify_evidence(container_running("gone"))).status == "failed"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{base}/none.sock")
    assert (await verifier.verify_evidence(captured)).status == "cannot_check"
    gc.collect()
