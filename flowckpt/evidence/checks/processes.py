"""The checks of processes: `command_exit`, `process_exists` and `container_running`.

`command_exit` compares the exit code of the step's command with the claimed one, and never runs anything. A code must
be an `int`: `True` is not 1, and 137 ("killed" in a shell) is not -9 (the same in Python).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
from typing import Any

import attrs

from flowckpt.core.system import process
from flowckpt.evidence.checks.base import (
    VERIFIED,
    Check,
    CheckContext,
    MalformedClaimError,
    Outcome,
    UncheckableClaimError,
    denied_error,
    failed_outcome,
    parse_text,
    parse_whole_number,
)
from flowckpt.evidence.claims import Capture, Evidence, State

_SMALLEST, _LARGEST = -(2**31), 2**32 - 1  # the range of operating systems, with signals as negative numbers


class CommandExit(Check):
    """Compares the exit code of the step's command."""

    is_local = True

    def verify(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Compare with the exit code of the step's command, or else with `metadata["actual_exit_code"]`."""
        wanted = parse_whole_number(claim.expected, "exit_code", _SMALLEST, _LARGEST)
        ran, noted = context.settings.facts.exit_code, claim.metadata.get("actual_exit_code")
        for code in (ran, noted):
            if code is not None and type(code) is not int:
                raise MalformedClaimError(f"the actual exit code is {code!r:.80}, not a whole number")
        if ran is not None and noted is not None and ran != noted:
            return failed_outcome(f"the step's command returned {ran}, but the claim's metadata has {noted}")
        found = noted if ran is None else ran
        if found is None:
            raise UncheckableClaimError(
                "the step has no command with a known exit code",
                remedy="Give the step a command, or the claim a metadata['actual_exit_code'].",
            )
        return VERIFIED if found == wanted else failed_outcome(f"the command returned {found}, not {wanted}")


# `process_exists`: the captured process is still running.
#
# A pid alone does not identify a process, because pids are reused; boot id, pid and start time together do.


_LARGEST_PID = 2**22  # Linux's PID_MAX_LIMIT; others' are smaller


class ProcessExists(Check):
    """Checks that the captured process is still running."""

    def verify(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Compare boot, pid and start time."""
        facts = claim.expected
        pid = parse_whole_number(facts, "pid", 1, _LARGEST_PID)
        started = parse_whole_number(facts, "start_time", 1, 2**63)
        identity = process.ProcessIdentity(parse_text(facts, "host"), parse_text(facts, "boot_id"), pid, started)
        lives = process.is_alive(identity)
        if lives is None:
            raise UncheckableClaimError(
                f"process {pid} runs on {identity.host!r:.80}, in another container or machine than this one"
            )
        if lives:
            return VERIFIED
        if identity.system[0] != process.current_process().system[0]:
            return failed_outcome(f"process {pid} is gone: the machine was rebooted since")
        now = process._start_time(pid)
        return failed_outcome(f"process {pid} is gone" + ("; its number belongs to another process now" if now else ""))

    def capture(self, claim: Evidence, context: CheckContext) -> Evidence:
        """Record which process has the pid now; without a pid, this one."""
        if claim.state is not State.UNCAPTURED:
            return claim
        given = claim.expected.get("pid")
        pid = os.getpid() if given is None else parse_whole_number(claim.expected, "pid", 1, _LARGEST_PID)
        started, boot_id = process._start_time(pid), process.system_id()
        if not started or not boot_id:
            why = (
                f"there is no process {pid}" if boot_id else "this system does not provide the start time of a process"
            )
            raise denied_error(claim, why)
        facts = {"pid": pid, "start_time": started, "boot_id": boot_id, "host": os.uname().nodename}
        return attrs.evolve(
            claim, expected={**claim.expected, **facts}, state=State.CAPTURED, captured=Capture(context.clock.now())
        )


# `container_running`: a container with this name is running; if captured, the same one.


_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,254}")  # Docker's rule for names; the name becomes part of a URL path


class ContainerRunning(Check):
    """Checks a container by reading from the Docker daemon of the environment (`DOCKER_HOST`)."""

    is_slow = True

    def verify(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Compare the container's state, and its id if one was recorded."""
        found = _find_running_container(claim, context)
        recorded = claim.expected.get("id")
        if recorded is not None and recorded != found:
            name = parse_text(claim.expected, "name")
            return failed_outcome(f"container {name} was replaced: id recorded {recorded!s:.12}, found {found:.12}")
        return VERIFIED

    def verify_uncaptured(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Check the state: that a container with this name is running is a claim by itself."""
        return self.verify(claim, context)

    def capture(self, claim: Evidence, context: CheckContext) -> Evidence:
        """Record the id of the container."""
        if claim.state is not State.UNCAPTURED:
            return claim
        found = _find_running_container(claim, context)
        return attrs.evolve(
            claim,
            expected={**claim.expected, "id": found},
            state=State.CAPTURED,
            captured=Capture(context.clock.now()),
        )


def _find_running_container(claim: Evidence, context: CheckContext) -> str:
    """Return the id of the running container."""
    name = parse_text(claim.expected, "name")
    if _NAME.fullmatch(name) is None:
        raise MalformedClaimError(f"{name!r:.80} is not the name of a container", remedy="Write its name or its id.")
    docker = _import_docker()
    seconds = max(1, int(context.settings.limits.network_seconds))
    try:
        with contextlib.closing(docker.from_env(timeout=seconds)) as client:
            container = client.containers.get(name)
            state, found = str(container.status), str(container.id)
    except docker.errors.NotFound:
        raise denied_error(claim, f"there is no container {name}") from None
    except Exception as error:  # without a daemon, the library may raise anything
        raise UncheckableClaimError(f"the Docker daemon cannot be asked: {type(error).__name__}") from error
    if state != "running":
        raise denied_error(claim, f"container {name} is {state!r:.40}, not running")
    return found


def _import_docker() -> Any:
    try:
        return importlib.import_module("docker")
    except ImportError as error:
        raise UncheckableClaimError(
            "claims about containers need the package 'docker', which is not installed",
            remedy="pip install 'flowckpt[docker]'",
        ) from error
