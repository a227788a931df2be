"""`container_running`: a container of that name runs; where it was captured, the very same one."""

from __future__ import annotations

import importlib
import re
from typing import Any

import attrs

from flowckpt.errors import EvidenceCaptureError
from flowckpt.evidence.checks.base import (
    VERIFIED,
    Check,
    CheckContext,
    MalformedClaimError,
    Outcome,
    UncheckableClaimError,
    failed,
)
from flowckpt.evidence.checks.reading import text_in
from flowckpt.evidence.model import Capture, Evidence, State

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,254}")  # Docker's own rule; the name becomes a part of a path


class ContainerRunning(Check):
    """Asks the Docker daemon of the environment (`DOCKER_HOST`), reading only."""

    is_slow = True

    def verify(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Compare the container's state, and its id where one was recorded."""
        found = _look(claim, context)
        if isinstance(found, Outcome):
            return found
        recorded = claim.expected.get("id")
        if recorded is not None and recorded != found:
            name = text_in(claim.expected, "name")
            return failed(f"container {name} was made anew: id recorded {recorded!s:.12}, found {found:.12}")
        return VERIFIED

    def verify_uncaptured(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Ask, too: that a container of the name runs is a claim by itself."""
        return self.verify(claim, context)

    def capture(self, claim: Evidence, context: CheckContext) -> Evidence:
        """Record the id of the container."""
        if claim.state is not State.UNCAPTURED:
            return claim
        found = _look(claim, context)
        if isinstance(found, Outcome):
            raise EvidenceCaptureError(
                evidence_type=str(claim.evidence_type), description=claim.description, detail=found.error or ""
            )
        return attrs.evolve(
            claim,
            expected={**claim.expected, "id": found},
            state=State.CAPTURED,
            captured=Capture(context.clock.now()),
        )


def _look(claim: Evidence, context: CheckContext) -> str | Outcome:
    """Return the id of the running container, or the outcome of a claim that does not hold."""
    name = text_in(claim.expected, "name")
    if _NAME.fullmatch(name) is None:
        raise MalformedClaimError(f"{name!r:.80} is no name of a container", remedy="Write its name or its id.")
    docker = _library()
    seconds = max(1, int(context.settings.limits.network_seconds))
    try:
        client = docker.from_env(timeout=seconds)
    except Exception as error:  # whatever the library raises where there is no daemon
        raise UncheckableClaimError(f"the Docker daemon cannot be asked: {type(error).__name__}") from error
    try:
        container = client.containers.get(name)
        state, found = str(container.status), str(container.id)
    except docker.errors.NotFound:
        return failed(f"there is no container {name}")
    except Exception as error:
        raise UncheckableClaimError(f"the Docker daemon cannot be asked: {type(error).__name__}") from error
    finally:
        client.close()
    return found if state == "running" else failed(f"container {name} is {state!r:.40}, not running")


def _library() -> Any:
    try:
        return importlib.import_module("docker")
    except ImportError as error:
        raise UncheckableClaimError(
            "claims about containers need the package 'docker', which is not installed",
            remedy="pip install 'flowckpt[docker]'",
        ) from error
