"""`predicate`: a function of the program returns True. Values other than True and False are not an answer."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any

from flowckpt.evidence.checks.base import (
    VERIFIED,
    Check,
    CheckContext,
    CheckTimeoutError,
    MalformedClaimError,
    Outcome,
    UncheckableClaimError,
    failed_outcome,
    parse_mapping,
    parse_text,
)
from flowckpt.evidence.claims import Evidence, registered_predicate


class Predicate(Check):
    """Calls a function that the program passed or registered."""

    is_slow = True
    is_local = True

    def verify(self, claim: Evidence, context: CheckContext) -> Outcome | Awaitable[Outcome]:
        """Call the function with the recorded arguments."""
        name = parse_text(claim.expected, "function")
        args, kwargs = claim.expected.get("args", ()), parse_mapping(claim.expected, "kwargs")
        if not isinstance(args, list | tuple):
            raise MalformedClaimError(f"'args' is {args!r:.80}, not a list")
        function = context.predicates.get(name) or registered_predicate(name)
        if function is None:
            raise UncheckableClaimError(
                f"the program has not registered the predicate {name!r:.120}",
                remedy="Decorate it with @register_predicate, or pass it: EvidenceVerifier(…, predicates=[…]).",
            )
        try:
            answer = function(*args, **kwargs)
        except (Exception, SystemExit) as error:
            raise _raised_error(name, error) from error
        if inspect.isawaitable(answer):
            return _await_answer(name, answer, context.settings.limits.predicate_seconds)
        return _judge(name, answer)


async def _await_answer(name: str, answer: Awaitable[Any], seconds: float) -> Outcome:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return _judge(name, await answer)
    except TimeoutError as error:
        if limit.expired():
            raise CheckTimeoutError(f"{name} took longer than the limit of {seconds:g} s") from error
        raise _raised_error(name, error) from error
    except (Exception, SystemExit) as error:
        raise _raised_error(name, error) from error


def _judge(name: str, answer: object) -> Outcome:
    if answer is True:
        return VERIFIED
    if answer is False:
        return failed_outcome(f"{name} returned False")
    raise UncheckableClaimError(f"{name} returned a {type(answer).__name__}, not True or False")


def _raised_error(name: str, error: BaseException) -> UncheckableClaimError:
    return UncheckableClaimError(f"{name} raised {type(error).__name__}: {error!s:.200}")
