"""Hooks: a command or a webhook for the end of a run, in its own thread, so that it cannot delay or harm the run."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from flowckpt._version import __version__
from flowckpt.cli.config.read import PREFIX_OF_INPUTS, variables_of_inputs
from flowckpt.cli.config.settings import Hook
from flowckpt.cli.progress.lines import event_document
from flowckpt.core.system.numbers import pluralize
from flowckpt.errors import EncodingError, SettingError
from flowckpt.events import is_repeated_end

if TYPE_CHECKING:
    from flowckpt.events import Event


Target: TypeAlias = str | Sequence[str]
"""A shell command, a command as a list, an http(s) URL, or `@env:NAME` for the value of that variable."""

TIMEOUT_SECONDS = 30.0
MOST_TRIES = 3
HOOK_VARIABLE = "FLOWCKPT_HOOK"
_PAUSES_SECONDS = (0.5, 2.0)
_SOCKET_SECONDS = 10.0
_LONGEST_VARIABLE = 4_000
_LARGEST_OUTPUT = 256 * 1024
_NAMES = {
    "WorkflowFailed": ("on_failure", "failed"),
    "WorkflowSuspended": ("on_suspended", "suspended"),
    "WorkflowCompleted": ("on_completed", "completed"),
    "CrashLoopDetected": ("on_crash_loop", "crashed"),
}

_log = logging.getLogger("flowckpt.hooks")
_pending: list[threading.Thread] = []


class Hooks:
    """A listener that runs a command or calls a webhook when a run ends.

    `WorkflowEngine(listeners=[Hooks(on_failure="./notify.sh")])`. Each hook runs in its own thread: the run never waits
    for it, and its failure is logged as a warning. At its end, the process waits for running hooks.

    A hook is a shell command, a command as a list of texts, an http or https URL, or `@env:NAME` for the command or URL
    in an environment variable. A command gets the event as JSON on standard input and the most important facts in
    `FLOWCKPT_…` variables; a URL gets the JSON as a POST request. A failing hook is tried three times in total; a
    command that exceeded the time limit is not tried again.

    Args:
        on_failure: for a run that failed.
        on_suspended: for a run that waits, or that a signal stopped.
        on_completed: for a run that completed.
        on_crash_loop: for a resume that was refused because the run crashed too often at the same step.
        timeout: seconds for a hook, including all tries.
        directory: where commands run; by default, the current working directory.
        environment: variables for commands, added to those of the process.

    Raises:
        SettingError: a hook is neither a command nor a URL, or the timeout is not positive.
    """

    folds_restored = True

    def __init__(
        self,
        *,
        on_failure: Target | None = None,
        on_suspended: Target | None = None,
        on_completed: Target | None = None,
        on_crash_loop: Target | None = None,
        timeout: float = TIMEOUT_SECONDS,
        directory: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        given = {
            "on_failure": on_failure,
            "on_suspended": on_suspended,
            "on_completed": on_completed,
            "on_crash_loop": on_crash_loop,
        }
        self._targets = {name: _check_target(name, target) for name, target in given.items() if target is not None}
        if not timeout > 0:
            raise SettingError(f"the timeout of hooks must be a number of seconds above 0, got {timeout!r:.80}")
        self._timeout = timeout
        self._directory = str(Path.cwd() if directory is None else directory)
        self._environment = dict(environment or {})
        self._attempts: dict[str, tuple[str, int]] = {}

    def __call__(self, event: Event) -> None:
        """Start the hook of an event, if it has one."""
        if event.kind in ("WorkflowStarted", "WorkflowResumed", "WorkflowContinued"):
            started: Any = event
            self._attempts[event.workflow_id] = started.workflow_name, started.attempt
            return
        if event.kind == "WorkflowCancelled":
            self._attempts.pop(event.workflow_id, None)
        if event.kind not in _NAMES:
            return
        name, status = _NAMES[event.kind]
        workflow, attempt = self._attempts.pop(event.workflow_id, ("", 0))
        target = self._targets.get(name)
        if target is None or is_repeated_end(event):
            return
        facts: dict[str, Any] = {"hook": name, "status": status, "workflow_name": workflow, "attempt": attempt}
        document = {**facts, **_make_document(event)}
        document["text"] = _summarize(document)
        self._start(name, target, document)

    def _start(self, name: str, target: Target, document: dict[str, Any]) -> None:
        call = _Call(name, target, document, self._timeout, self._directory, self._environment)
        # Not a daemon: a process waits for it at its end, also a child of `multiprocessing`.
        thread = threading.Thread(target=call.deliver, name=f"flowckpt {name}")
        _pending.append(thread)
        try:
            thread.start()
        except RuntimeError:  # the limit of threads
            _pending.remove(thread)
            raise


def wait_for_hooks() -> None:
    """Wait for running hooks; each has a time limit."""
    for thread in [*_pending]:
        thread.join()


def _check_target(name: str, target: object) -> Target:
    try:
        checked: str | tuple[str, ...] = Hook().from_toml(list(target) if isinstance(target, tuple) else target)
    except ValueError:
        raise SettingError(f"{name} must be {Hook().expected}, got {target!r:.80}", setting=name) from None
    return checked


def _make_document(event: Event) -> dict[str, Any]:
    """Return an event as plain JSON, without an output that is large or that only its type can encode."""
    with contextlib.suppress(EncodingError):
        document: Any = event_document(event, Any)
        if len(json.dumps(document.get("output"))) <= _LARGEST_OUTPUT:
            return dict(document)
    completed: Any = event
    document = event_document(attrs.evolve(completed, output=None), Any)
    return {**document, "output_omitted": True}


def _summarize(document: Mapping[str, Any]) -> str:
    """Return a one-line summary, which chat programs show from the field `text`."""
    head = f"Run {document['workflow_id']} of {document['workflow_name']}"
    match document["hook"]:
        case "on_failure":
            return f"{head} failed: {document['error_type']}: {document['error_message']}"
        case "on_suspended" if document["cause"]:
            return f"{head} was stopped by {document['cause']}; a resume continues it"
        case "on_suspended":
            waits = ", ".join(f"{each['kind']} {each['name'] or each['path']}" for each in document["waits"])
            return f"{head} waits for {waits}"
        case "on_completed":
            steps = f"{pluralize(document['executed'], 'step')} executed, {document['restored']} restored"
            return f"{head} completed in {document['duration_ms'] / 1000:.1f} s: {steps}"
    return str(document["message"])


class _HookFailedError(Exception):
    """A try of a hook failed.

    Attributes:
        is_final: whether another try would fail the same way.
    """

    def __init__(self, detail: str, *, is_final: bool = False) -> None:
        super().__init__(detail)
        self.is_final = is_final


@attrs.define
class _Call:
    """A running hook."""

    name: str
    _target: Target
    _document: Mapping[str, Any]
    _timeout: float
    _directory: str
    _environment: Mapping[str, str]
    deadline: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.deadline = time.monotonic() + self._timeout

    def deliver(self) -> None:
        """Run the hook, with retries; log a failure as a warning."""
        try:
            tries, detail = self._try_repeatedly()
            if detail:
                often = f" ({tries} tries)" if tries > 1 else ""
                _log.warning("run %s: hook %s failed%s: %s", self._document["workflow_id"], self.name, often, detail)
        finally:
            _pending.remove(threading.current_thread())

    def _try_repeatedly(self) -> tuple[int, str]:
        """Return the number of tries and the last failure; empty if it succeeded."""
        tries = 0
        for tries in range(1, MOST_TRIES + 1):
            try:
                self._try()
            except _HookFailedError as error:
                pause = _PAUSES_SECONDS[min(tries, len(_PAUSES_SECONDS)) - 1]
                if error.is_final or tries == MOST_TRIES or self._remaining_seconds() <= pause:
                    return tries, str(error)
                time.sleep(pause)
            except Exception as error:
                return tries, f"{type(error).__name__}: {error}"
            else:
                break
        return tries, ""

    def _remaining_seconds(self) -> float:
        return self.deadline - time.monotonic()

    def _try(self) -> None:
        target = self._target
        if isinstance(target, str) and target.startswith("@env:"):
            variable = target.removeprefix("@env:")
            target = os.environ.get(variable, "")
            if not target:
                raise _HookFailedError(f"the environment variable {variable} is not set", is_final=True)
        if isinstance(target, str) and re.match(r"https?://", target, re.IGNORECASE):
            self._post(target)
        else:
            self._run(target)

    def _run(self, command: Target) -> None:
        """Run a command; its whole group is killed at the time limit.

        Raises:
            _HookFailedError: it could not be started, exceeded the time limit, or did not exit with 0.
        """
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else [*command]
        # Files, not pipes: a command that reads nothing, or leaves a process that holds them open, cannot block us.
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as output:
            stdin.write(f"{json.dumps(self._document)}\n".encode())
            stdin.seek(0)
            try:
                process = subprocess.Popen(  # noqa: S603 - the user's own command
                    argv,
                    stdin=stdin,
                    stdout=output,
                    stderr=output,
                    cwd=self._directory,
                    env=self._make_environment(),
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                raise _HookFailedError(f"the command cannot be started: {error}", is_final=True) from None
            try:
                code = process.wait(max(0.0, self._remaining_seconds()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise _HookFailedError(f"the command took longer than {self._timeout:g} s", is_final=True) from None
            if code:
                output.seek(max(0, output.seek(0, os.SEEK_END) - 2_000))
                lines = output.read().decode(errors="replace").strip().splitlines()
                last_line = f": {lines[-1]:.300}" if lines else ""
                raise _HookFailedError(f"the command exited with {code}{last_line}")

    def _make_environment(self) -> dict[str, str]:
        """Return the environment of a command: with the facts of the event, without the run's secret inputs."""
        document = self._document
        facts = {
            HOOK_VARIABLE: self.name,
            "FLOWCKPT_EVENT": document["event"],
            "FLOWCKPT_WORKFLOW_ID": document["workflow_id"],
            "FLOWCKPT_WORKFLOW_NAME": document["workflow_name"],
            "FLOWCKPT_STATUS": document["status"],
            "FLOWCKPT_ATTEMPT": str(document["attempt"]),
            "FLOWCKPT_TEXT": document["text"],
        }
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(PREFIX_OF_INPUTS) and name not in variables_of_inputs
        }
        return {
            **inherited,
            **self._environment,
            **{name: value.replace("\0", "")[:_LONGEST_VARIABLE] for name, value in facts.items()},
        }

    def _post(self, url: str) -> None:
        """POST the event to a URL.

        Raises:
            _HookFailedError: there was no successful response.
        """
        try:
            parts = urllib.parse.urlsplit(url)
        except ValueError:
            raise _HookFailedError("the URL is invalid", is_final=True) from None
        document = self._document
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"flowckpt/{__version__}",
            "Idempotency-Key": f"{document['workflow_id']}-{document['attempt']}-{self.name}",
        }
        if parts.username is not None:
            user = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            headers["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
            url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        failures: list[Exception] = []

        def send() -> None:
            try:
                request = urllib.request.Request(url, json.dumps(document).encode(), headers)  # noqa: S310 - http or https
                timeout = max(0.01, min(_SOCKET_SECONDS, self._remaining_seconds()))
                with urllib.request.build_opener(_NoRedirects).open(request, timeout=timeout):
                    pass
            except Exception as error:
                failures.append(error)

        # A timeout of urllib applies to each read: a server that sends a byte now and then would never time out.
        sending = threading.Thread(target=send, name=f"flowckpt {self.name}, sending", daemon=True)
        sending.start()
        sending.join(max(0.01, self._remaining_seconds()))
        if sending.is_alive():
            raise _HookFailedError(f"{parts.hostname} did not answer in time", is_final=True)
        if failures:
            raise _request_error(parts.hostname, failures[0])


def _request_error(host: str | None, error: Exception) -> _HookFailedError:
    """Return why a request failed. It names only the host, because the path may be secret."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        is_final = error.code < 500 and error.code not in (408, 425, 429)
        return _HookFailedError(f"{host} answered {error.code} {error.reason}", is_final=is_final)
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return _HookFailedError(f"{host} did not answer in time")
    if isinstance(error, OSError | http.client.HTTPException):
        return _HookFailedError(f"{host} cannot be reached: {reason}")
    return _HookFailedError("the URL is invalid", is_final=True)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirects, because urllib would drop the body of the request."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Refuse."""
        return
