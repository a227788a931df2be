"""The verifier: claims in, verdicts out, without ever blocking an application's loop."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import attrs

from flowckpt.core.system.blocking import run_blocking, run_on_daemon
from flowckpt.core.system.clock import Clock, SystemClock
from flowckpt.errors import EvidenceCaptureError, EvidenceError, FlowckptError
from flowckpt.evidence.checks import TABLE, find_check
from flowckpt.evidence.checks.base import (
    AllowedHost,
    Check,
    CheckContext,
    CheckTimeoutError,
    Limits,
    MalformedClaimError,
    Mode,
    Outcome,
    RefusedClaimError,
    Settings,
    StepFacts,
    UncheckableClaimError,
)
from flowckpt.evidence.claims import (
    Evidence,
    EvidencePack,
    State,
    find_secrets,
    function_name,
    redact_text,
    registered_databases,
    scrub,
)
from flowckpt.evidence.digests import THREADS
from flowckpt.evidence.report import Moment, Verdict, VerdictStatus, VerificationReport, make_report
from flowckpt.evidence.sandbox import PathRefusedError, Sandbox

# A daemon thread for work that may never end: neither the loop nor the exit of the program waits for it.


T = TypeVar("T")


async def run_with_limit(work: Callable[[], T], seconds: float) -> T:
    """Run work that cannot be stopped, and wait for it with a time limit.

    Raises:
        TimeoutError: the work did not end in time; its thread continues.
    """
    async with asyncio.timeout(seconds):
        return await run_on_daemon(partial(contextvars.copy_context().run, work))


# Blocking checks of claims: in place, on a thread, or on any worker of an executor.
#
# Every error during a check becomes the outcome of its claim: nothing here raises because of a record or a plugin.


Answer = Outcome | Awaitable[Outcome]


def verify_all(claims: Sequence[Evidence], context: CheckContext, own: Mapping[str, Check]) -> list[Answer]:
    """Return the outcome of each claim.

    Args:
        claims: the claims.
        context: the permissions and tools; its sandbox is closed at the end.
        own: the kinds that the program adds.
    """
    with closing(context.sandbox):
        return [verify_one(claim, context, own) for claim in claims]


def verify_one(claim: Evidence, context: CheckContext, own: Mapping[str, Check]) -> Answer:
    """Return the outcome of a claim; an awaitable has to be awaited in the program's loop."""
    if claim.state is State.UNREADABLE:
        return Outcome(
            VerdictStatus.CANNOT_CHECK,
            "it cannot be checked: it was recorded by a newer program in a form that this one cannot read. "
            "Upgrade flowckpt.",
        )
    try:
        check = find_check(claim.evidence_type, own)
        if claim.state is State.UNCAPTURED:
            return check.verify_uncaptured(claim, context)
        return check.verify(claim, context)
    except Exception as error:
        return outcome_of(error)


def capture_all(
    claims: Sequence[Evidence], context: CheckContext, own: Mapping[str, Check]
) -> list[Evidence | Exception]:
    """Return each claim with its captured facts, or the error.

    Args:
        claims: the claims.
        context: the permissions and tools; its sandbox is closed at the end.
        own: the kinds that the program adds.
    """
    with closing(context.sandbox):
        found: list[Evidence | Exception] = []
        for claim in claims:
            try:
                found.append(find_check(claim.evidence_type, own).capture(claim, context))
            except Exception as error:  # including those of plugins
                found.append(error)
        return found


def verify_shipped(claims: Sequence[Evidence], settings: Settings) -> list[Outcome]:
    """Return the outcome of each claim, on a worker of an executor, which gets only plain values.

    Args:
        claims: the claims, of kinds that any worker can check.
        settings: the permissions.
    """
    context = CheckContext(settings, Sandbox(settings.base_path, allow_absolute=settings.allow_absolute))
    return [
        each if isinstance(each, Outcome) else outcome_of(TypeError("it can only be checked by the program itself"))
        for each in verify_all(claims, context, {})
    ]


def verify_for_quorum(claim: Evidence, settings: Settings, linger: float) -> tuple[str, Outcome]:
    """Return the identity of this worker, and its outcome of a claim.

    Args:
        claim: the claim.
        settings: the permissions.
        linger: how long to keep the worker busy afterwards, so that another worker gets the next call.
    """
    outcome = verify_shipped([claim], settings)[0]
    if linger:
        time.sleep(linger)
    return f"{os.uname().nodename}, process {os.getpid()}, thread {threading.get_native_id()}", outcome


def outcome_of(error: BaseException) -> Outcome:
    """Return the outcome of a claim whose check raised an error: the result is unknown."""
    if isinstance(error, EvidenceCaptureError):
        return Outcome(VerdictStatus.FAILED, error.detail, (error.detail,))
    if isinstance(error, MalformedClaimError):
        return Outcome(VerdictStatus.MALFORMED, f"the claim is malformed: {error}")
    if isinstance(error, RefusedClaimError | PathRefusedError):
        return Outcome(VerdictStatus.REFUSED, f"the check was refused: {error}")
    if isinstance(error, CheckTimeoutError):
        return Outcome(VerdictStatus.TIMED_OUT, f"it could not be checked in time: {error}")
    if isinstance(error, TimeoutError):
        return Outcome(VerdictStatus.TIMED_OUT, "it could not be checked in time")
    if isinstance(error, FlowckptError):
        return Outcome(VerdictStatus.CANNOT_CHECK, f"it cannot be checked: {error}")
    if isinstance(error, OSError) and error.strerror:
        return Outcome(VerdictStatus.CANNOT_CHECK, f"it cannot be checked: {error.strerror}")
    return Outcome(
        VerdictStatus.CANNOT_CHECK, f"it cannot be checked: its check raised {type(error).__name__}: {error!s:.200}"
    )


# Several workers check the same claim and must agree: machines may see a shared system differently.


# How long to keep a worker busy after its answer, per round; otherwise a fast worker would get several of the calls.
LINGER = (0.0, 0.05, 0.25, 1.0)


async def ask_workers(claim: Evidence, settings: Settings, executor: Executor) -> Outcome:
    """Return the outcome that the workers agree on, or a disagreement.

    Args:
        claim: the claim, with the number of workers that must agree.
        settings: the permissions.
        executor: provides the workers.
    """
    answers: dict[str, list[Outcome]] = {}
    lost: list[BaseException] = []
    limits = settings.limits
    seconds = limits.hash_seconds + limits.query_seconds + limits.network_seconds
    try:
        async with asyncio.timeout(seconds):
            for linger in LINGER:
                asked = [
                    asyncio.wrap_future(executor.submit(verify_for_quorum, claim, settings, linger))
                    for _ in range(claim.workers)
                ]
                for answer in await asyncio.gather(*asked, return_exceptions=True):
                    if isinstance(answer, BaseException):
                        lost.append(answer)
                    else:
                        answers.setdefault(answer[0], []).append(answer[1])
                if len(answers) >= claim.workers or lost:
                    break
    except TimeoutError:
        return Outcome(
            VerdictStatus.TIMED_OUT, f"{len(answers)} of {claim.workers} workers answered within {seconds:g} s"
        )
    except Exception as error:  # the executor no longer accepts work
        lost.append(error)
    return combine_answers(answers, claim.workers, lost)


def combine_answers(
    answers: Mapping[str, Sequence[Outcome]], workers: int, lost: Sequence[BaseException] = ()
) -> Outcome:
    """Return the outcome that the workers agree on.

    Args:
        answers: the outcomes by worker.
        workers: how many workers must have answered.
        lost: the errors of the others.
    """
    given = [outcome for outcomes in answers.values() for outcome in outcomes]
    statuses = sorted({outcome.status for outcome in given})
    if len(statuses) > 1:
        message = ", ".join(f"{sum(outcome.status is status for outcome in given)} say {status}" for status in statuses)
        details = [
            f"{worker}: {outcome.status}{f' ({outcome.error})' if outcome.error else ''}"
            for worker, outcomes in answers.items()
            for outcome in outcomes
        ]
        return Outcome(VerdictStatus.DISAGREEMENT, f"the workers disagree: {message}", tuple(details), "quorum")
    if len(answers) < workers:
        why = f"; {outcome_of(lost[0]).error}" if lost else ""
        return Outcome(
            VerdictStatus.CANNOT_CHECK,
            f"it cannot be checked: {len(answers)} of {workers} workers answered{why}. "
            "Give the verifier an executor with as many workers as the quorum.",
            method="quorum",
        )
    return Outcome(given[0].status, given[0].error, given[0].details, "quorum")


_MANY = 64  # claims per call of a worker; fewer are not worth a pool
_MOST_SLOW = 8  # slow checks at the same time
_NO_FACTS = StepFacts()
_LONGEST_WAIT = 60.0
_MOST_ATTEMPTS = 1_000  # a record may contain any number
_MAY_HOLD_LATER = (
    VerdictStatus.FAILED,
    VerdictStatus.CANNOT_CHECK,
    VerdictStatus.TIMED_OUT,
    VerdictStatus.DISAGREEMENT,
)

_NOT_RECHECKED = Outcome(VerdictStatus.NOT_RECHECKED, "it had to hold only when the step committed")
_CAPTURED = Outcome(VerdictStatus.VERIFIED, method="captured")


class EvidenceVerifier:
    """Compares claims with the outside world.

    Args:
        base_path: the directory where relative paths start and which no path leaves.
        mode: `hash` reads every byte; `stat` skips files that look untouched.
        allow_absolute: whether absolute paths may leave the base path.
        allow_network: hosts and ports that network claims may reach, as `host:port` or `AllowedHost`; none by default.
        predicates: functions that claims may name, in addition to registered ones.
        checks: additional kinds, by name.
        executor: runs large hashing work, by default a few threads, and the checks of a quorum, which need one.
        limits: how much time and memory a check may use.
        clock: the time, for tests.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each setting
        self,
        base_path: str | os.PathLike[str] = ".",
        *,
        mode: Mode | str = Mode.HASH,
        allow_absolute: bool = False,
        allow_network: Iterable[str | AllowedHost] = (),
        predicates: Iterable[Callable[..., Any]] = (),
        checks: Mapping[str, Check] | None = None,
        executor: Executor | None = None,
        limits: Limits | None = None,
        clock: Clock | None = None,
    ) -> None:
        if isinstance(allow_network, str):
            raise EvidenceError(f"allow_network is a list of hosts, not {allow_network!r:.80}", remedy="Use a list.")
        hosts = [AllowedHost.parse(each) if isinstance(each, str) else each for each in allow_network]
        self._settings = Settings(
            str(Path(base_path).absolute()), allow_absolute, _parse_mode(mode), tuple(hosts), limits or Limits()
        )
        self._predicates = {function_name(function): function for function in predicates}
        self._checks = dict(checks or {})
        self._executor = executor
        self._clock = clock or SystemClock()

    @property
    def base_path(self) -> str:
        """The directory where relative paths start."""
        return self._settings.base_path

    def changed(self, *, mode: Mode | str | None = None, executor: Executor | None = None) -> EvidenceVerifier:
        """Return a verifier with some arguments changed.

        Args:
            mode: `hash` or `stat`.
            executor: runs large hashing work and the checks of a quorum.
        """
        other = copy.copy(self)
        if mode is not None:
            other._settings = attrs.evolve(self._settings, mode=_parse_mode(mode))
        if executor is not None:
            other._executor = executor
        return other

    # --- verifying --------------------------------------------------------------------------------------------------

    async def verify_evidence(
        self, evidence: Evidence, *, moment: Moment = Moment.NOW, facts: StepFacts = _NO_FACTS
    ) -> Verdict:
        """Check one claim.

        Args:
            evidence: the claim.
            moment: when it is checked.
            facts: what is known of its step.
        """
        return (await self._verify_at([evidence], moment, facts))[0]

    async def verify_evidence_pack(
        self, pack: EvidencePack, *, moment: Moment = Moment.NOW, facts: StepFacts = _NO_FACTS
    ) -> VerificationReport:
        """Check the claims of a pack and apply its policy.

        Args:
            pack: the pack.
            moment: when it is checked.
            facts: what is known of its step.
        """
        verdicts = await self._verify_at(pack.evidence_list, moment, facts)
        return make_report(pack, verdicts)

    async def verify_packs(
        self, packs: Sequence[tuple[EvidencePack, StepFacts]], *, moment: Moment = Moment.NOW
    ) -> list[VerificationReport]:
        """Check many packs together, as a resume does.

        Args:
            packs: the packs, each with what is known of its step.
            moment: when they are checked.
        """
        by_facts: dict[StepFacts, list[int]] = {}
        for index, (_, facts) in enumerate(packs):
            by_facts.setdefault(facts, []).append(index)
        reports: dict[int, VerificationReport] = {}
        for facts, indices in by_facts.items():
            claims = [claim for index in indices for claim in packs[index][0]]
            verdicts = iter(await self._verify_at(claims, moment, facts))
            for index in indices:
                pack = packs[index][0]
                answers = [next(verdicts) for _ in pack]
                held = facts.transient_held if moment is Moment.RESUME else None
                reports[index] = make_report(pack, answers, transient_held=held)
        return [reports[index] for index in range(len(packs))]

    async def verify_multiple(
        self, evidence: Iterable[Evidence], *, moment: Moment = Moment.NOW, facts: StepFacts = _NO_FACTS
    ) -> dict[str, Any]:
        """Check several claims, and return `total`, `verified`, `failed`, `success_rate` (0 to 1) and `all_passed`.

        Claims that cannot be checked count as failed. Without claims, `all_passed` is False.

        Args:
            evidence: the claims.
            moment: when they are checked.
            facts: what is known of their step.
        """
        verdicts = await self._verify_at(list(evidence), moment, facts)
        counted = [verdict for verdict in verdicts if verdict.status is not VerdictStatus.NOT_RECHECKED]
        verified = sum(verdict.verified for verdict in counted)
        return {
            "total": len(counted),
            "verified": verified,
            "failed": len(counted) - verified,
            "success_rate": verified / len(counted) if counted else 0.0,
            "all_passed": bool(counted) and verified == len(counted),
        }

    # --- capturing --------------------------------------------------------------------------------------------------

    async def capture(self, evidence: Evidence) -> Evidence:
        """Return a claim with its facts as of now; facts given by the program are kept.

        Args:
            evidence: the claim.

        Raises:
            EvidenceCaptureError: the facts do not exist.
        """
        found = (await self._capture([evidence]))[0]
        if isinstance(found, Evidence):
            return found
        verdict = self._make_verdict(evidence, outcome_of(found), self._clock.now())
        raise EvidenceCaptureError(
            evidence_type=str(evidence.evidence_type),
            description=redact_text(evidence.description),
            detail=verdict.error or "it is unknown why",
        ) from found

    async def commit(
        self, pack: EvidencePack, *, facts: StepFacts = _NO_FACTS
    ) -> tuple[EvidencePack, VerificationReport]:
        """Capture and check a pack when its step ends, reading each file once.

        Args:
            pack: the pack as the program wrote it.
            facts: what is known of its step.

        Returns:
            The pack to record, and its report. A claim whose facts could not be captured does not hold.
        """
        claims = list(pack.evidence_list)
        verdicts = await self._judge(claims, partial(self._commit, facts=facts))
        recorded = attrs.evolve(pack, evidence_list=claims)
        return recorded, make_report(recorded, verdicts)

    async def _commit(self, claims: list[Evidence], *, facts: StepFacts) -> list[Outcome]:
        """Check claims, and replace those in the list by claims with facts."""
        captured = await self._capture(claims)
        outcomes: dict[int, Outcome] = {}
        for index, found in enumerate(captured):
            if isinstance(found, Exception):
                if claims[index].state is State.UNCAPTURED:
                    outcomes[index] = outcome_of(found)
            elif found is not claims[index]:
                claims[index] = found
                if found.workers == 1:
                    outcomes[index] = _CAPTURED
        rest = [index for index in range(len(claims)) if index not in outcomes]
        settings = attrs.evolve(self._settings, facts=facts, databases=registered_databases())
        outcomes.update(zip(rest, await self._verify_claims([claims[index] for index in rest], settings), strict=True))
        return [outcomes[index] for index in range(len(claims))]

    async def _with_retries(
        self, claims: list[Evidence], check: Callable[[list[Evidence]], Awaitable[list[Outcome]]]
    ) -> list[Outcome]:
        """Check claims together, and repeat those that do not hold and have retries."""
        outcomes = await check(claims)
        done, waited = 1, 0.0
        while again := [
            index
            for index, outcome in enumerate(outcomes)
            if claims[index].attempts > done and outcome.status in _MAY_HOLD_LATER
        ]:
            wait = max(min(_LONGEST_WAIT, claims[index].backoff * 2 ** min(done - 1, 64)) for index in again)
            waited += wait
            if waited > self._settings.limits.retry_seconds or done >= _MOST_ATTEMPTS:
                break
            await self._clock.sleep(wait)
            some = [claims[index] for index in again]
            for index, outcome in zip(again, await check(some), strict=True):
                outcomes[index] = outcome
            for index, claim in zip(again, some, strict=True):
                claims[index] = claim
            done += 1
        return outcomes

    async def _capture(self, claims: Sequence[Evidence]) -> list[Evidence | Exception]:
        # A file with given facts is read too, to record its signature.
        wanted = [index for index, claim in enumerate(claims) if claim.state in (State.UNCAPTURED, State.STATED)]
        found: list[Evidence | Exception] = list(claims)
        if wanted:
            these = [claims[index] for index in wanted]
            work = partial(capture_all, these, self._context(self._settings), self._checks)
            for index, claim in zip(wanted, await run_blocking(work), strict=True):
                is_unknown = isinstance(claim, UncheckableClaimError) and claims[index].state is State.STATED
                found[index] = claims[index] if is_unknown else claim
        return found

    # --- the work ---------------------------------------------------------------------------------------------------

    async def _verify_at(self, claims: Sequence[Evidence], moment: Moment, facts: StepFacts) -> list[Verdict]:
        databases = registered_databases()
        settings = attrs.evolve(self._settings, moment=Moment(moment), facts=facts, databases=databases)
        return await self._judge(list(claims), partial(self._verify_claims, settings=settings))

    async def _judge(
        self, claims: list[Evidence], check: Callable[[list[Evidence]], Awaitable[list[Outcome]]]
    ) -> list[Verdict]:
        """Check claims, with their retries, and return the verdicts; `check` may replace claims in the list."""
        started_ns = self._clock.elapsed_ns()
        outcomes = await self._with_retries(claims, check)
        now, took_ms = self._clock.now(), (self._clock.elapsed_ns() - started_ns) / 1e6
        return [
            self._make_verdict(claim, outcome, now, took_ms) for claim, outcome in zip(claims, outcomes, strict=True)
        ]

    async def _verify_claims(self, claims: Sequence[Evidence], settings: Settings) -> list[Outcome]:
        outcomes: list[Outcome] = [_NOT_RECHECKED] * len(claims)
        quick: list[int] = []
        shippable: list[int] = []
        work: list[Coroutine[Any, Any, None]] = []
        room = asyncio.Semaphore(_MOST_SLOW)

        async def keep(indices: Sequence[int], answers: Coroutine[Any, Any, list[Outcome]]) -> None:
            for index, outcome in zip(indices, await answers, strict=True):
                outcomes[index] = outcome

        async def keep_slow(index: int, check: Check) -> None:
            async with room:
                outcomes[index] = await self._verify_slow(claims[index], check, settings)

        with ExitStack() as pools:
            for index, claim in enumerate(claims):
                if claim.is_transient and settings.moment is Moment.RESUME:
                    continue
                check = self._find_check(claim)
                if claim.workers > 1:
                    work.append(keep([index], self._ask_quorum(claim, check, settings)))
                elif check is not None and check.is_slow:
                    work.append(keep_slow(index, check))
                elif check is not None and not (check.is_local or check.splits_work) and claim.evidence_type in TABLE:
                    shippable.append(index)
                else:
                    quick.append(index)
            executor = self._executor
            is_much = settings.mode is Mode.HASH and len(shippable) > _MANY and THREADS > 1
            if executor is None and is_much:
                executor = pools.enter_context(ThreadPoolExecutor(THREADS, "flowckpt-verify"))
            if executor is None or settings.mode is Mode.STAT:  # a stat costs less than a call of a worker
                quick += shippable
            else:
                at_once = max(1, min(_MANY, len(shippable) // (4 * THREADS)))  # distributes even a few large files
                for begin in range(0, len(shippable), at_once):
                    some = shippable[begin : begin + at_once]
                    work.append(keep(some, self._ship(executor, [claims[index] for index in some], settings)))
            if quick:
                work.append(keep(quick, self._verify_here([claims[index] for index in quick], settings)))
            await _run_all(work)
        return outcomes

    async def _verify_here(self, claims: Sequence[Evidence], settings: Settings) -> list[Outcome]:
        answers = await run_blocking(partial(verify_all, claims, self._context(settings), self._checks))
        return [await _await_outcome(answer) for answer in answers]

    async def _ship(self, executor: Executor, claims: Sequence[Evidence], settings: Settings) -> list[Outcome]:
        try:
            return await asyncio.wrap_future(executor.submit(verify_shipped, claims, settings))
        except Exception as error:  # a worker died, or the executor was shut down
            return [outcome_of(error)] * len(claims)

    async def _verify_slow(self, claim: Evidence, check: Check, settings: Settings) -> Outcome:
        verify = partial(verify_all, [claim], self._context(settings), self._checks)
        try:
            if check.is_local:  # the program's own code may take any time
                answers = await run_with_limit(verify, settings.limits.predicate_seconds)
            else:
                answers = await run_blocking(verify)
        except TimeoutError as error:
            return outcome_of(error)
        return await _await_outcome(answers[0])

    async def _ask_quorum(self, claim: Evidence, check: Check | None, settings: Settings) -> list[Outcome]:
        if check is None:
            return await self._verify_here([claim], settings)
        if check.is_local or claim.evidence_type in self._checks:
            message = (
                f"it cannot be checked: only the program itself can answer a {claim.evidence_type}, so no quorum can"
            )
            return [Outcome(VerdictStatus.CANNOT_CHECK, message)]
        if self._executor is None:
            message = (
                f"it cannot be checked: {claim.workers} workers must agree, and the verifier has no executor. "
                "Give it one: EvidenceVerifier(…, executor=…)."
            )
            return [Outcome(VerdictStatus.CANNOT_CHECK, message, method="quorum")]
        return [await ask_workers(claim, settings, self._executor)]

    def _find_check(self, claim: Evidence) -> Check | None:
        try:
            return find_check(claim.evidence_type, self._checks)
        except Exception:  # its verdict reports the error
            return None

    def _context(self, settings: Settings) -> CheckContext:
        sandbox = Sandbox(settings.base_path, allow_absolute=settings.allow_absolute)
        return CheckContext(settings, sandbox, self._clock, self._predicates, self._executor)

    def _make_verdict(self, claim: Evidence, outcome: Outcome, now: datetime, took_ms: float = 0.0) -> Verdict:
        error, details = outcome.error, outcome.details
        if error is not None:
            secrets = {
                *find_secrets(claim.expected, claim.hidden_names),
                *find_secrets(claim.metadata, claim.hidden_names),
            }
            for host in self._settings.allowed_hosts:
                secrets.update(value for value in host.headers.values() if len(value) >= 4)
            hidden = frozenset(secrets)
            error = _clean_text(error, hidden)
            details = tuple(_clean_text(detail, hidden) for detail in details)
            details = () if details == (error,) else details
        return Verdict(claim, outcome.status, error, now, details, outcome.method, took_ms)


def _parse_mode(mode: Mode | str) -> Mode:
    if mode not in tuple(Mode):
        raise EvidenceError(f"{mode!r:.80} is not a mode of a verifier", remedy="Write 'hash' or 'stat'.")
    return Mode(mode)


def _clean_text(text: str, secrets: frozenset[str]) -> str:
    """Remove secrets and control characters from a text."""
    text = redact_text(scrub(text, secrets))
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


async def _await_outcome(answer: Answer) -> Outcome:
    if isinstance(answer, Outcome):
        return answer
    try:
        return await answer
    except Exception as error:
        return outcome_of(error)


async def _run_all(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    if len(work) == 1:
        await work[0]
    elif work:
        async with asyncio.TaskGroup() as tasks:
            for each in work:
                tasks.create_task(each)
