"""Two containers of a pod: they have one host name, and each has PIDs of its own."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flowckpt.core.system import process

APART = ["unshare", "--pid", "--fork", "--mount-proc"]
PAYING = """
import os, time
from flowckpt import step, workflow
from flowckpt.evidence import predicate

def is_paid():
    return os.path.exists("paid")

def pay():
    with open("log", "a") as file:
        file.write("began\\n")
    while not os.path.exists("go"):
        time.sleep(0.01)
    open("paid", "w").close()
    with open("log", "a") as file:
        file.write("paid\\n")

@workflow
def paying():
    yield step("pay").python(pay).at_most_once().evidence(predicate(is_paid))
"""


def can_be_apart() -> bool:
    try:
        return subprocess.run([*APART, "true"], capture_output=True, timeout=60).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not can_be_apart(), reason="no PID namespace can be made here")
@pytest.mark.parametrize("store", ["sqlite:runs.db", "file:runs"])
def test_a_live_run_of_another_container_is_neither_dead_nor_taken_over(flowckpt, tmp_path, store):
    (tmp_path / "app.py").write_text(PAYING)
    environment = {**flowckpt.environment, "FLOWCKPT_STORE": store}

    def run_apart(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*APART, sys.executable, "-m", "flowckpt", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_apart, "run", "app.py", "--id", "one")
        try:
            flowckpt.wait_for("began")
            assert "running" in run_apart("list").stdout
            recovered = run_apart("recover")
            assert "is due" in recovered.stdout + recovered.stderr, recovered
            refused = run_apart("resume", "one")
            assert refused.returncode == 75 and "process 1 on" in refused.stderr, refused
        finally:
            (tmp_path / "go").touch()
        assert running.result().returncode == 0, running.result()
    assert flowckpt.log() == ["began", "paid"]


@pytest.fixture
def machine(monkeypatch):
    """Says how the machine is booted, identified and divided."""

    def set_up(boot: str, machine: str) -> process.ProcessIdentity:
        files = {"/proc/sys/kernel/random/boot_id": boot, "/etc/machine-id": machine}
        monkeypatch.setattr(process, "_read", files.__getitem__)
        process._identity_of.cache_clear()
        return process.current_process()

    yield set_up
    monkeypatch.undo()
    process._identity_of.cache_clear()


def test_only_another_boot_of_the_same_machine_is_a_reboot(machine):
    before = machine("boot 1", "machine 1")
    assert process.is_alive(before) is True
    machine("boot 2", "machine 1")
    assert process.is_alive(before) is False
    machine("boot 2", "machine 2")  # with the same name
    assert process.is_alive(before) is None
    unknown = machine("boot 1", "")
    machine("boot 2", "")
    assert process.is_alive(unknown) is None


def test_a_process_of_another_namespace_is_unknown(machine):
    here = machine("boot 1", "machine 1")
    boot, name, namespace = here.system
    there = process.ProcessIdentity(here.host, f"{boot}/{name}/{int(namespace or 0) + 1}", here.pid, here.start_time)
    assert process.is_alive(there) is None


def test_the_id_of_the_machine_is_not_recorded(machine):
    text = Path("/etc/machine-id")
    secret = text.read_text().strip() if text.exists() else "3d1219c7c4c5404aaa1f6d2a48adfda4"
    assert secret not in machine("boot", secret).boot_id
