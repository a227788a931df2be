"""Paths of steps, checks of step arguments at definition, and the source line that errors report.

A path is built from names and occurrences: `fetch` for the first use of a name, `fetch[1]` for the second, `fetch[2]`
for the third; `train/fit` inside a child. `%`, `/`, `[`, `]`, `@`, and control or invisible characters (line ends,
terminal and bidi controls, zero widths) could make two paths equal, or look equal. Inside a *name* they are
percent-encoded, so a step called `a/b` has the path `a%2Fb`.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from types import CodeType
from typing import Any, TypeAlias

from flowckpt.core.system import external
from flowckpt.core.system.declared import is_unicode
from flowckpt.core.system.functions import cached_per_function
from flowckpt.errors import StepDefinitionError, StepNotYieldedError

# A fixed list, not `str.isprintable`: a path is an identity, and must not change with Python's Unicode tables.
_SPECIAL = (
    r"[%/\[\]@\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e"
    r"\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff0-\ufffb"
    r"\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bcaf\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
MAX_NAME_LENGTH = 500
MAX_DEPTH = 100
"""Maximum nesting of steps: each level takes about five of the thousand nested calls that Python allows."""


def _percent_encode(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match.group().encode("utf-8", "surrogatepass"))


@lru_cache(maxsize=4096)
def encode_name(name: str) -> str:
    """Percent-encode a step's name for use in a path."""
    if name.isascii() and name.replace("_", "").replace("-", "").isalnum():
        return name  # the common case: compiling the pattern takes 0.5 ms
    return re.sub(_SPECIAL, _percent_encode, name)


def check_depth(path: str) -> None:
    """Refuse a composite step that is nested too deeply, before any of its steps run.

    Raises:
        StepDefinitionError: it is nested in more than `MAX_DEPTH` steps.
    """
    if path.count("/") >= MAX_DEPTH:
        raise StepDefinitionError(
            f"the step {path[:60]!r}… would nest steps more than {MAX_DEPTH} deep",
            step=path,
            remedy="Use a loop in one workflow instead of a workflow that runs itself, or start separate runs.",
        )


def path_of(name: str, occurrence: int = 0) -> str:
    """Return the path of one occurrence of a name.

    Args:
        name: the step's name.
        occurrence: 0 for the first use, 1 for the second …
    """
    return f"{encode_name(name)}[{occurrence}]" if occurrence else encode_name(name)


# A step is a value: if a workflow creates one and forgets to yield it, nothing happens. So while a run is driven, each
# created step is noted by its action, which all modifiers of a step share, and removed when it is yielded.

MOST_NOTED = 1000

Noted: TypeAlias = dict[int, tuple[Any, str, CodeType, int]]
"""The action and name of each step, and the instruction that created it, by the id of the action."""

CREATED: ContextVar[Noted | None] = ContextVar("created", default=None)
"""The steps that the workflow has created and not yielded; None outside a run."""

created_steps = CREATED.get


def note_created(action: Any, name: str, depth: int = 2) -> None:
    """Note that a step was created.

    Args:
        action: its action.
        name: its name.
        depth: the number of frames between this function and the code that creates the step.
    """
    noted = created_steps()
    if noted is not None and len(noted) < MOST_NOTED:
        frame = sys._getframe(depth)
        noted[id(action)] = (action, name, frame.f_code, frame.f_lasti)


def unyielded_warnings(noted: Noted, *, ending: Exception | None) -> list[str]:
    """Return a warning for each line whose steps were never yielded.

    Args:
        noted: the created steps.
        ending: the exception that ended the workflow, None if it returned. A workflow that raised may have created
            steps for later, so steps count only if nothing refers to them, and if the expression that raised did not
            create them.
    """
    raising = set() if ending is None else set(_lines_that_raised(ending))
    lost = Counter(
        (name, *place)
        for action, name, code, instruction in noted.values()
        if (ending is None or sys.getrefcount(action) <= 3)  # references: the note, the variable, the argument
        and (place := (code.co_filename, _lines_of(code, instruction)[0])) not in raising
    )
    return [
        f"continue_as() was called at {file}:{line} and not returned, so no generation follows: write 'return continue_as(…)'"
        if not name
        else f"step {name!r} was created at {file}:{line}{f' {count} times' if count > 1 else ''} and never yielded, so it did "
        "not run: write 'yield step(…)'"
        for (name, file, line), count in lost.items()
    ]


def _lines_that_raised(error: BaseException) -> Iterator[tuple[str, int]]:
    """Return the lines of the expressions that an exception went through."""
    at = error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        first, last = _lines_of(code, at.tb_lasti)
        for line in range(first or at.tb_lineno, (last or at.tb_lineno) + 1):
            yield code.co_filename, line
        at = at.tb_next


def _lines_of(code: CodeType, instruction: int) -> tuple[int, int]:
    """Return the first and last line of the expression of an instruction; zeros if the code object lacks positions."""
    first, last, _, _ = next(islice(code.co_positions(), instruction // 2, None), (None, None, None, None))
    return first or 0, last or 0


def caller() -> str:
    """Return `file:line` of the nearest frame outside `core/dsl`; empty if that frame is flowckpt's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_globals.get("__name__", "").startswith(("flowckpt.core.dsl", "flowckpt.execution.current_step"))
        or frame.f_code.co_filename.startswith("<attrs")
    ):
        frame = frame.f_back
    is_own = frame.f_globals.get("__name__", "").startswith("flowckpt.")
    return "" if is_own else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def public_names(cls: type) -> list[str]:
    """Return the public attributes of a class, in order."""
    return [each for each in dir(cls) if not each.startswith("_")]


def suggestion(cls: type, name: str) -> str:
    """Return ` (did you mean 'checkpoint'?)` with the closest public name of a class; empty if none is close."""
    names = public_names(cls)
    return "".join(f" (did you mean {each!r}?)" for each in external.difflib.get_close_matches(name, names, 1, 0.75))


def step_error(name: str, problem: str, remedy: str = "", *, where: str | None = None) -> StepDefinitionError:
    """Return the error of an invalid step; it reports the line that defines the step unless `where` is given."""
    return StepDefinitionError(
        f"step {name!r}: {problem}", step=name, where=caller() if where is None else where, remedy=remedy
    )


def check_name(name: object, what: str) -> None:
    """Refuse an invalid name of a step, or of what the error calls `what`.

    Raises:
        StepDefinitionError: it is not text, blank, not valid Unicode, or longer than 500 characters.
    """
    if not isinstance(name, str):
        raise StepDefinitionError(f"a {what} must be text, got {name!r} ({type(name).__name__})", where=caller())
    if not name.strip():
        raise StepDefinitionError(f"a {what} must not be blank, got {name!r}", step=name, where=caller())
    if not is_unicode(name):
        raise StepDefinitionError(f"a {what} must be valid Unicode, got {name!r:.80}", where=caller())
    if len(name) > MAX_NAME_LENGTH:
        raise StepDefinitionError(
            f"a {what} may have {MAX_NAME_LENGTH} characters, got {len(name)}: {name[:40]!r}…",
            step=name[:MAX_NAME_LENGTH],
            where=caller(),
            remedy="Name the work, and pass the data as arguments.",
        )


def check_unary(step_name: str, modifier: str, function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a function of a modifier unchanged, or refuse one that cannot be called with one argument.

    Raises:
        StepDefinitionError: it accepts no argument, or requires more than one.
    """
    if signature := _unsuitable_signature(function):
        raise step_error(
            step_name,
            f".{modifier}() needs a function of one argument, the recorded output; this one is called as {signature}",
            "Give it one parameter without a default; functools.partial fills in what else it needs.",
        )
    return function


@cached_per_function
def _unsuitable_signature(function: Callable[..., Any]) -> str:
    """Return the signature of a function that cannot be called with one argument; empty if it can, or is unknown."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin that has none
        return ""
    try:
        signature.bind(None)
    except TypeError:
        return f"{getattr(function, '__name__', type(function).__name__)}{signature}"
    return ""


@cached_per_function
def keywords_of(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the names of the arguments that a function takes by name; None if it takes any, or that is unknown."""
    try:
        # of the function itself: a wrapper may take more than the function that it wraps
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):  # a builtin that has none
        return None
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    return tuple(each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY))


@cached_per_function
def undo_parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the parameters of a `.rollback()` function that receive arguments of the step.

    These are the parameters
    without a default after the first, which receives the output.
    """
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # a builtin that has none
        return ()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(each.name for each in parameters[1:] if each.default is each.empty and each.kind in by_name)


def find_unmatched_undo_parameter(step: Any) -> str:
    """Return a parameter of a step's `.rollback()` that matches no argument of the step; empty if all match."""
    named = undo_parameters(step.modifiers.rollback)
    if not named:
        return ""
    known = step.action.parameters
    return next((name for name in named if name not in known), "")


def check_undo(step_name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of `.rollback()` unchanged, or refuse one without a parameter for the output.

    Raises:
        StepDefinitionError: it cannot be called with the output and arguments by name.
    """
    named = undo_parameters(function)
    try:
        inspect.signature(function).bind(None, **dict.fromkeys(named))
    except ValueError:  # a builtin without a signature
        return function
    except TypeError:
        raise step_error(
            step_name,
            f".rollback() needs a function of the recorded output; this one is called as "
            f"{getattr(function, '__name__', type(function).__name__)}{inspect.signature(function)}",
            "Its first parameter gets the output; more parameters get arguments of the step, by their names.",
        ) from None
    return function


def unpack_arguments(
    step_name: str, function: Callable[..., Any], given: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Unpack `.python(fn, args=(…), kwargs={…})`, unless the function has parameters named `args` or `kwargs`.

    Its
    `*args` and `**kwargs` do not count: they cannot be passed by name.

    Raises:
        StepDefinitionError: `args` is not a sequence, or `kwargs` is not a mapping.
    """
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        found = {}.values()  # a builtin without a signature
    if any(each.name in given and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) for each in found):
        return (), dict(given)
    args, kwargs = given.get("args", ()), given.get("kwargs") or {}
    if isinstance(args, str | bytes) or not isinstance(args, Sequence) or not isinstance(kwargs, Mapping):
        raise step_error(step_name, f"args= takes a sequence and kwargs= a mapping, got {args!r} and {kwargs!r}")
    return tuple(args), dict(kwargs)


# Checks of functions. Steps and workflows are recognized by their attributes, because their modules import this one.


def is_step(value: object) -> bool:
    """Return whether a value is a step, with or without an action."""
    return hasattr(type(value), "modifiers") and hasattr(value, "name")


def _unwrap_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def unyielded_argument_error(name: str, argument: Any) -> StepNotYieldedError:
    """Return the error for a step passed as an argument of another step.

    Args:
        name: the name of the receiving step; empty if it is not known.
        argument: the step passed as an argument.
    """
    got = f"step {name!r} gets the step {argument.name!r}" if name else f"a step gets the step {argument.name!r}"
    where = caller() if name else ""
    return StepNotYieldedError(f"{got} as an argument, not the output of that step", step=argument.name, where=where)


def describe_argument(value: object) -> str:
    """Return an invalid argument as text for an error."""
    return repr(value) if is_step(value) else f"{value!r:.80} ({type(value).__name__})"


def check_function(step_name: str, function: object, action: str) -> None:
    """Refuse anything but a named function: the name is part of the step's identity.

    Raises:
        StepDefinitionError: it is not callable, a lambda, or a workflow.
    """
    if hasattr(type(function), "secret_inputs"):
        raise step_error(
            step_name,
            f".{action}() was given the workflow {getattr(function, 'name', '')!r}, which is not a function to call",
            "Run it inside this one with .workflow(child, …), or once per item with .map(child, items).",
        )
    if not callable(function) or getattr(_unwrap_partial(function), "__name__", "") == "<lambda>":
        raise _function_error(step_name, function, action)


def _function_error(step_name: str, function: object, action: str) -> StepDefinitionError:
    if callable(function):
        what = f"a lambda ({getattr(getattr(_unwrap_partial(function), '__code__', None), 'co_filename', '?')})"
        remedy = "Write 'def name(…): …': the function's name is part of the step's identity."
    else:
        what = f"{describe_argument(function)}, which cannot be called"
        remedy = (
            f"Pass the function and its arguments separately: .{action}(fetch, source), not .{action}(fetch(source))."
        )
        if is_step(function):
            remedy = "Pass the function itself; for steps in parallel, yield a parallel(…)."
    return step_error(step_name, f".{action}() needs a named function, got {what}", remedy)


MOST_PUBLISHED_NAME = 200


def check_published_name(name: Any) -> str:
    """Return the name of a published value if it is valid.

    Raises:
        StepDefinitionError: it is not text, is blank, or is longer than 200 characters.
    """
    check_name(name, "published name")
    if len(name) > MOST_PUBLISHED_NAME:
        raise StepDefinitionError(
            f"a published name may have {MOST_PUBLISHED_NAME} characters, got {len(name)}: {name[:40]!r}…",
            where=caller(),
        )
    return str.__str__(name)
