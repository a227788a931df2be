"""Replay, with no I/O, no clock and no loop: a generator and a record in, commands out.

The rules:

1. The generator is driven by `start()`, then by `send(value)` or `throw(error)` in answer to each command.
2. A yielded step has a *path*: its name, and its occurrence where the name was used before. Paths are counted in the
   order of the yields, which is the same in every execution of a deterministic generator.
3. A path that is in the record is a `Restore`, wherever it is in the record. A path that is not is an `Execute`,
   but only when the whole record has been used: while recorded results wait for their step, a step that the record does
   not know means that the code has changed, and running it could do anything. That is `WorkflowChangedError`. The
   exception is `patched()`, which is then answered with False: the run passed this place before the patch existed.
4. Ephemeral steps are never in the record: they are an `Execute` at each replay.
5. The end of the generator is a `Finish` or a `Crash`; before the whole record was used it is a change, like rule 3.
6. The driver may answer a `Restore` with `rerun`: the result is no longer valid, and the command becomes an
   `Execute`. From then on the record does not bind the generator, because what it yields may depend on the new result.
   The waiting results are dropped or become spare: a step that is yielded again may reuse its spare result.

So nothing except ephemeral steps is executed until every recorded result has found its step, or one is no longer valid.

    start() ──► Restore ──send/throw──► … ──► Execute ──send/throw──► … ──► Finish | Crash
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from types import CodeType, FrameType, GeneratorType
from typing import Any, TypeAlias

import attrs

from flowckpt.core.dsl import NextGeneration, Step, StepBuilder, Workflow, continue_as
from flowckpt.core.dsl.builder import explain_mistake
from flowckpt.core.dsl.checks import check_depth, created_steps, encode_name, find_unmatched_undo_parameter, step_error
from flowckpt.core.dsl.step import PythonAction
from flowckpt.core.dsl.workflow import RETURN_IT, begin_repeating, end_repeating
from flowckpt.core.records import StepResult
from flowckpt.core.records.result import UNREAD
from flowckpt.core.system.attrs_base import FieldEquality, lazy_define
from flowckpt.core.system.declared import short_repr
from flowckpt.errors import StepDefinitionError, StepFailedError, WorkflowChangedError, WorkflowDefinitionError

# What replay asks of its driver.


@attrs.define(eq=False, repr=False)
class Execute:
    """Run this step now."""

    path: str
    step: Step[Any]
    location: str


@lazy_define(eq=False, repr=False)
class Restore:
    """Answer the generator with this recorded result."""

    path: str
    step: Step[Any]
    result: StepResult
    is_spare: bool = False
    """Whether the result is set aside: no longer part of the run, unless its step reuses it."""


@lazy_define(eq=False, repr=False)
class Enter:
    """Enter this composite: its steps have their own records, and some may have to run."""

    path: str
    step: Step[Any]
    location: str
    result: StepResult | None = None
    """Its own recorded result; None if it has not ended."""
    nested: Sequence[StepResult] = ()
    """The recorded results of all steps nested in it."""
    is_spare: bool = False
    """Whether the results are set aside: no longer part of the run, unless their steps reuse them."""
    is_bound: bool = True
    """Whether its steps must match the record."""


@lazy_define(eq=False, repr=False)
class Finish(FieldEquality):
    """The generator returned."""

    output: Any


@lazy_define(eq=False, repr=False)
class Crash(FieldEquality):
    """The generator raised."""

    error: BaseException


Command: TypeAlias = Execute | Restore | Enter | Finish | Crash

Glance: TypeAlias = Callable[[Step[Any], StepResult], Any]
"""A fast path: returns the output of a recorded plain step if nothing needs a check or an event, else `UNREAD`."""


# The position of a generator, for records and messages.


_STEP_ITER: CodeType = Step.__iter__.__code__


def where_of(generator: Any, *, full: bool = False) -> str:
    """Return `file:line` of the `yield` at which a generator is suspended, inside generators that it delegates to.

    The record gets the bare file name: the same code in another directory is the same code.

    Args:
        generator: the generator; after its end, the result is empty.
        full: whether to include the file's directory.
    """
    frames = suspended_frames(generator)
    if not frames:
        return ""
    file = frames[-1].f_code.co_filename
    return f"{file if full else _base_name(file)}:{frames[-1].f_lineno}"


def suspended_frames(generator: Any) -> list[FrameType]:
    """Return the frames of a suspended generator, then those of the generators that it delegates to."""
    found = generator
    frames: list[FrameType] = []
    while type(found) is GeneratorType and found.gi_code is not _STEP_ITER and found.gi_frame is not None:
        frames.append(found.gi_frame)
        found = found.gi_yieldfrom
    return frames


@functools.lru_cache(maxsize=256)
def _base_name(file: str) -> str:
    return PurePath(file).name


# The recorded results from a generator's point of view: those of its own steps, by path, and those nested in them.
#
# The history is flat, in the order in which results were recorded. A generator knows only the paths of its own steps; a
# result further down (`pages/[17]`, `train/fit`) belongs to the step that contains it, and waits together with it.


Own = dict[str, StepResult | None]
"""The results of a generator's own steps; None for an unfinished step that has results nested in it."""
Nested = dict[str, list[StepResult]]


def split_record(recorded: Iterable[StepResult], prefix: str = "") -> tuple[Own, Nested]:
    """Split results into a generator's own and those nested in its steps.

    Args:
        recorded: the results, in the order of the history.
        prefix: the prefix of the paths of its steps.
    """
    own: Own = {result.path: result for result in recorded}
    if prefix:  # in a stopped member of a race: undo results do not belong to a step
        undoing = [path for path in own if path.endswith("@rollback") and "/" not in path[len(prefix) :]]
        for path in undoing:
            del own[path]
    start = len(prefix)
    if not (any("/" in path[start:] for path in own) if prefix else "/" in "".join(own)):
        return own, {}
    split: Own = {}
    nested: Nested = {}
    for path, result in own.items():
        end = path.find("/", start)
        if end < 0:
            split[path] = result
        elif result is not None:
            split.setdefault(path[:end], None)
            nested.setdefault(path[:end], []).append(result)
    return split, nested


@attrs.define(eq=False, repr=False)
class DroppedResults:
    """Recorded results and waits that are not part of the run now, shared by all generators of the run.

    Attributes:
        dropped: recorded results that are no longer part of the run.
        spare: results that steps may reuse when they are yielded, by path.
        waiting: the steps that the record shows as waiting, or as begun without a known end.
        raised: the generators that have ended with an exception.
    """

    dropped: list[StepResult] = attrs.field(factory=list)
    spare: dict[str, StepResult] = attrs.field(factory=dict)
    waiting: set[str] = attrs.field(factory=set)
    raised: set[Replay] = attrs.field(factory=set)

    def take_nested(self, path: str) -> list[StepResult]:
        """Take the spare results nested in a step."""
        if not self.spare:
            return []
        found = [each for each in self.spare if each.startswith(f"{path}/")]
        return [self.spare.pop(each) for each in found]


def all_of(own: Mapping[str, StepResult | None], nested: Mapping[str, list[StepResult]]) -> Iterator[StepResult]:
    """Yield the results of a record, those nested in a step before its own."""
    for path, result in own.items():
        yield from nested.get(path, ())
        if result is not None:
            yield result


class Replay:
    """Drives one generator against one record.

    Args:
        generator: the generator, not yet started.
        recorded: the results of its run.
        workflow_name: its workflow, for errors.
        prefix: the prefix of the paths of its steps; for a child, the path of its step.
        drops_what_changed: whether recorded results are dropped if the generator yields something else.
        spare: results that are not part of the run, and that its steps may reuse when they are yielded.
        aside: takes dropped results and provides spare ones; a child shares that of the run.
        is_repeated: whether the generator ran before, so that its code is repeated until a step runs again.
        is_muted: whether the generator counts as repeated to its end, because no step runs.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each part of the record
        self,
        generator: Generator[Any, Any, Any],
        recorded: Iterable[StepResult],
        workflow_name: str,
        *,
        prefix: str = "",
        drops_what_changed: bool = False,
        spare: Mapping[str, StepResult] | None = None,
        waiting: Iterable[str] = (),
        aside: DroppedResults | None = None,
        is_repeated: bool = False,
        is_muted: bool = False,
    ) -> None:
        self._generator = generator
        self._workflow_name = workflow_name
        self.prefix = prefix
        """The prefix of the paths of its steps."""
        self._is_bound = not drops_what_changed
        self._waiting, self._nested = split_record(recorded, prefix)
        self.aside = DroppedResults(spare=dict(spare or {}), waiting={*waiting}) if aside is None else aside
        """Results that are dropped or set aside for reuse."""
        self.is_handling = False
        """Whether a failure was raised in the generator, and its next step has not started yet."""
        self._uses: dict[str, int] = {}
        self._places: dict[int, str] = {}
        self._ephemeral: set[str] = set()
        self._patches: dict[str, bool] = {}
        self._is_repeated = is_repeated or is_muted
        self._is_muted = is_muted
        self._is_new = False  # whether the current command is executed, instead of answered from the record

    def start(self, glance: Glance | None = None) -> Command:
        """Run the generator up to its first step.

        Args:
            glance: as for `send`.

        Raises:
            WorkflowChangedError: the generator does not follow the record; it is closed.
        """
        return self.send(None, glance)

    def send(self, value: Any, glance: Glance | None = None) -> Command:
        """Answer the last command with a value.

        Args:
            value: the step's output.
            glance: answers the recorded plain steps that follow, without a command.

        Raises:
            WorkflowChangedError: the generator does not follow the record; it is closed.
            WorkflowDefinitionError: the generator yields something that is not a step; it is closed.
        """
        if glance is not None and self._waiting and self._is_repeated and not self._is_new:
            return self._restore_plainly(value, glance)
        try:
            yielded = (
                self._generator.send(value) if not self._is_repeated else self._repeat(self._generator.send, value)
            )
        except StopIteration as stop:
            return self._finish(stop.value)
        except BaseException as error:
            return self._crash(error)
        return self._make_command(yielded)

    def _restore_plainly(self, value: Any, glance: Glance) -> Command:
        """Send a value, then the outputs of plain steps, up to the first step that needs the full check."""
        send, prefix, waiting, uses = self._generator.send, self.prefix, self._waiting, self._uses
        created, name, first = created_steps(), "", ""
        ended: BaseException | None = None
        yielded: Any = None
        token = begin_repeating(True)
        try:
            while True:
                try:
                    yielded = send(value)
                except BaseException as error:
                    ended = error
                    break
                if type(yielded) is not Step or not yielded.modifiers.is_light:
                    break
                if yielded.name is not name:
                    name = yielded.name
                    first = prefix + encode_name(name)
                occurrence = uses.get(name, 0)
                path = f"{first}[{occurrence}]" if occurrence else first
                result = waiting.get(path)
                if result is None or (value := glance(yielded, result)) is UNREAD:
                    break
                uses[name] = occurrence + 1
                del waiting[path]
                if created is not None:
                    created.pop(id(yielded.action), None)
        finally:
            end_repeating(token)
        if ended is None:
            return self._make_command(yielded)
        try:
            return self._finish(ended.value) if isinstance(ended, StopIteration) else self._crash(ended)
        finally:
            ended = None  # break the cycle: its traceback holds this frame

    def throw(self, error: BaseException) -> Command:
        """Answer the last command with an error, raised at its `yield`.

        Args:
            error: the exception to raise.

        Raises:
            WorkflowChangedError: as for `send`.
            WorkflowDefinitionError: as for `send`.
        """
        self.is_handling = True
        try:
            throw = self._generator.throw
            yielded = throw(error) if not self._is_repeated else self._repeat(throw, error)
        except StopIteration as stop:
            return self._finish(stop.value)
        except BaseException as raised:
            return self._crash(raised)
        return self._make_command(yielded)

    def _repeat(self, go_on: Callable[[Any], Any], answer: Any) -> Any:
        """Advance the generator, with the flag set that its code may be a repetition."""
        if self._is_new and not self._is_muted:
            self._is_repeated = False
            return go_on(answer)
        token = begin_repeating(True)
        try:
            return go_on(answer)
        finally:
            end_repeating(token)

    def rerun(self, command: Restore, *, keeps_rest: bool) -> Execute:
        """Answer a `Restore` whose result is no longer valid.

        Args:
            command: the command.
            keeps_rest: whether the results that still wait become spare; otherwise they are dropped, too.

        Returns:
            The command to execute instead.
        """
        self.aside.dropped.append(command.result)
        self.begin_again(keeps_rest=keeps_rest)
        return Execute(command.path, command.step, self.where())

    def begin_again(self, *, keeps_rest: bool) -> None:
        """Release the generator from its record, because the result of a step or of a nested step is no longer valid.

        Args:
            keeps_rest: as for `rerun`.
        """
        self._is_bound, self._is_new = False, True
        if keeps_rest:
            self.aside.spare.update({each.path: each for each in all_of(self._waiting, self._nested)})
            self._waiting, self._nested = {}, {}
        self._drop_rest()

    def begin(self, command: Enter) -> None:
        """Note that a composite starts or continues, because some of its steps have to run.

        Args:
            command: the command.

        Raises:
            WorkflowChangedError: other recorded results still wait for their step.
        """
        self._is_new = True
        if self._waiting:
            if self._is_bound:
                what = f"continues the step {command.path!r}, which has ended in the record"
                raise self._change_error(what, self._describe(command.path, command.step))
            self._drop_rest()

    def close(self) -> BaseException | None:
        """Close the generator, so that its `finally` blocks run; return the exception that they raised, if any."""
        try:
            self._generator.close()
        except BaseException as error:
            return error
        return None

    def _make_command(self, yielded: Any) -> Command:
        if type(yielded) is not Step:
            raise self._close_for(_not_a_step_error(yielded, self._workflow_name, self.where()))
        step: Step[Any] = yielded
        action, modifiers = step.action, step.modifiers
        if (created := created_steps()) is not None:
            created.pop(id(action), None)
        name = step.name
        is_plain = modifiers.is_plain and type(action) is PythonAction
        if not is_plain:
            self._check_modifiers(step)
            if action.is_patch and (is_taken := self._is_patched(name)) is not None:
                return self.send(is_taken)
        occurrence = self._uses.get(name, 0)
        self._uses[name] = occurrence + 1
        path = self.prefix + encode_name(name)
        if occurrence:
            path += f"[{occurrence}]"
        if not is_plain:
            if modifiers.is_ephemeral:
                self._ephemeral.add(path)
                return Execute(path, step, self.where())
            if action.is_composite:
                return self._enter(path, step)
        if is_spare := path not in self._waiting:
            if self._waiting:
                self._refuse_unknown(path, step)
            spare = self.aside.spare
            if not spare or (result := spare.pop(path, None)) is None:
                self._is_new = True
                return Execute(path, step, self.where())
        else:
            result = self._waiting.pop(path)
        if result is None or is_another(step, result):
            self._drop_mismatch(path, step, result, is_spare=is_spare)
            self._is_new = True
            return Execute(path, step, self.where())
        return Restore(path, step, result, is_spare)

    def _check_modifiers(self, step: Step[Any]) -> None:
        """Refuse modifiers that do not fit the action or each other."""
        action, modifiers = step.action, step.modifiers
        if modifiers.adopt is not None and not modifiers.is_at_most_once:
            raise self._close_for(_adopt_error(step.name, self.where(full=True)))
        if modifiers.rollback is not None and (unknown := find_unmatched_undo_parameter(step)):
            raise self._close_for(_undo_argument_error(step, unknown, self.where(full=True)))
        if action.refused and (refused := action.refused_modifier(modifiers)):
            raise self._close_for(_modifier_error(step, refused, self.where(full=True)))

    def _is_patched(self, name: str) -> bool | None:
        """Return False if the run passed this place before the patch existed; None if a recorded or new result decides.

        A run passed this place before the patch existed if it has recorded results after it and none for it, or if it
        waits at a later step, or if it is unknown whether a later step was done.
        """
        known = self._patches.get(name)
        if known is None:
            is_recorded = self.prefix + encode_name(name) in self._waiting
            is_taken = self._patches[name] = is_recorded or not (
                self._waiting or self.list_unreached(self.aside.waiting)
            )
            return None if is_taken else False
        return known

    def list_unreached(self, paths: Iterable[str]) -> list[str]:
        """Return those of some paths that are in steps of the generator which it has not yielded yet."""
        start = len(self.prefix)
        own = {each: each[start:].partition("/")[0] for each in paths if each.startswith(self.prefix)}
        yielded = {
            encode_name(name) + f"[{number}]" * (number > 0)
            for name, uses in (self._uses.items() if own else ())
            for number in range(uses)
        }
        return [path for path, place in own.items() if place not in yielded]

    def _enter(self, path: str, step: Step[Any]) -> Enter:
        """Return the command for a composite."""
        check_depth(path)
        is_spare = path not in self._waiting
        if is_spare:
            if self._waiting:
                self._refuse_unknown(path, step)
            result, nested = self.aside.spare.pop(path, None), self.aside.take_nested(path)
        else:
            result, nested = self._waiting.pop(path), self._nested.pop(path, [])
        if result is not None and is_another(step, result):
            self._nested[path] = nested
            self._drop_mismatch(path, step, result, is_spare=is_spare)
            result, nested = None, []
        return Enter(path, step, self.where(), result, nested, is_spare, self._is_bound)

    def _refuse_unknown(self, path: str, step: Step[Any]) -> None:
        """Refuse a step without a record while recorded results still wait, or drop those results."""
        if self._is_bound:
            what = f"yields the step {path!r}, which the record does not have"
            raise self._change_error(what, self._describe(path, step))
        self._drop_rest()

    def _drop_mismatch(self, path: str, step: Step[Any], result: StepResult | None, *, is_spare: bool) -> None:
        """Drop the result of another step under the same path, or refuse the change."""
        if self._is_bound and not is_spare:
            self._waiting = {path: result, **self._waiting}
            raise self._change_error(f"yields another step under the path {path!r}", self._describe(path, step))
        self.aside.dropped += all_of({path: result}, {path: self._nested.pop(path, [])})
        self._drop_rest()

    def _drop_rest(self) -> None:
        self.aside.dropped += all_of(self._waiting, self._nested)
        self._waiting, self._nested = {}, {}

    def _finish(self, output: Any) -> Command:
        if self._waiting:
            if self._is_bound:
                raise self._change_error("returns before the record ends", f"return {short_repr(output, 80)}")
            self._drop_rest()
        if type(output) is NextGeneration:
            if (created := created_steps()) is not None:
                created.pop(id(output), None)
            if self.prefix:
                raise self._close_for(_child_generation_error(self._workflow_name, self.prefix, output.where))
        elif output is continue_as:
            raise self._close_for(
                WorkflowDefinitionError(
                    f"workflow {self._workflow_name!r} returned the function continue_as without calling it",
                    remedy=RETURN_IT,
                )
            )
        return Finish(output)

    def _crash(self, error: BaseException) -> Command:
        self.aside.raised.add(self)
        error = explain_mistake(error)
        if self._waiting and isinstance(error, Exception):
            if isinstance(error, StepFailedError) and error.path in self._ephemeral:
                # a new failure, such as a server that is down, does not mean that the workflow changed
                return Crash(error)
            if self._is_bound:
                raise self._change_error("raises before the record ends", f"raise {_error_text(error)}") from error
            self._drop_rest()
        return Crash(error)

    def _change_error(self, what: str, yielded: str) -> BaseException:
        path, first = next(iter(self._waiting.items()))
        if first is None:  # an unfinished composite
            recorded = f"step {path!r}, with {len(self._nested.get(path, ()))} steps of its own"
        else:
            recorded = f"step {path!r} ({first.step_type} {first.function}".rstrip() + ")"
            if first.location:
                recorded += f" at {first.location}"
        return self._close_for(
            WorkflowChangedError(
                f"workflow {self._workflow_name!r} {what}: recorded {recorded}; now {yielded}",
                workflow_name=self._workflow_name,
                recorded=recorded,
                yielded=yielded,
                remedy="No recorded step was run, and nothing was saved. Restore the code that wrote the record and resume; "
                "or resume with --from STEP to run everything from that step on again, or with --force to drop the rest "
                "of the record and run everything from here on.",
            )
        )

    def _describe(self, path: str, step: Step[Any]) -> str:
        action = step.action
        return f"step {path!r} ({action.step_type} {action.function_name}".rstrip() + f") at {self.where(full=True)}"

    def _close_for(self, error: BaseException) -> BaseException:
        self.close()
        return error

    def frames(self) -> list[FrameType]:
        """Return the frames of the suspended generator, and of those that it delegates to."""
        return suspended_frames(self._generator)

    def where(self, *, full: bool = False) -> str:
        """Return `file:line` of the `yield` at which the generator is suspended; empty after its end."""
        generator = self._generator
        if full or type(generator) is not GeneratorType or generator.gi_yieldfrom is not None:
            return where_of(generator, full=full)
        frame = generator.gi_frame
        if frame is None:
            return ""
        place = self._places.get(frame.f_lasti)
        if place is None:
            place = self._places[frame.f_lasti] = where_of(generator)
        return place


def _error_text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except Exception:
        return type(error).__name__


def _qualname(function: str) -> str:
    """Return the name of a function without its module: code that moves to another file is the same code."""
    return function[function.find(":") + 1 :]


def is_another(step: Step[Any], result: StepResult) -> bool:
    """Return whether a recorded result belongs to another step: of another kind, or with another function.

    Args:
        step: the step as it is yielded now.
        result: the recorded result of its path.
    """
    action = step.action
    named = action.function_name
    return result.step_type != action.step_type or (
        result.function != named and _qualname(result.function) != _qualname(named)
    )


def _modifier_error(step: Step[Any], modifier: str, where: str) -> StepDefinitionError:
    action = step.action
    remedy = "Give it to the steps inside it."
    if modifier == "on":
        remedy = "Remove it: it is only for .python(), and for a .map() of a function."
    elif action.is_waiting:
        remedy = "Remove it."
        if modifier == "timeout":
            remedy = f"Give the time to wait to the action: .{action.step_type}(…, timeout=60)."
        elif modifier == "evidence":
            remedy = "Bind an approval to claims with .approval(of=[…]), or give the claims to the next step."
    return step_error(step.name, f".{modifier}() cannot be used with .{action.step_type}()", remedy, where=where)


def _undo_argument_error(step: Step[Any], parameter: str, where: str) -> StepDefinitionError:
    known = ", ".join(map(repr, step.action.parameters)) or "no named arguments"
    return step_error(
        step.name,
        f"the function of .rollback() has a parameter {parameter!r}, but the step has no such argument",
        f"Its first parameter gets the output, the others get arguments of the step by name; the step has {known}.",
        where=where,
    )


def _adopt_error(name: str, where: str) -> StepDefinitionError:
    return step_error(
        name,
        "it has .adopt(), but no .at_most_once()",
        "Only at-most-once steps are adopted: add .at_most_once(), or remove .adopt().",
        where=where,
    )


def _child_generation_error(workflow_name: str, prefix: str, where: str) -> WorkflowDefinitionError:
    return WorkflowDefinitionError(
        f"child workflow {workflow_name!r} at {prefix[:-1]!r} returned continue_as(…), but a child has no generations",
        where=where,
        remedy="Return continue_as(…) from the workflow of the run, repeat the child in a loop of its parent, or start it as "
        "a separate run: step(…).start(workflow, …).",
    )


def _not_a_step_error(yielded: object, workflow_name: str, where: str) -> StepDefinitionError | WorkflowDefinitionError:
    if isinstance(yielded, StepBuilder):
        return StepDefinitionError(
            f"workflow {workflow_name!r} yielded step {yielded.name!r}, which has no action",
            step=yielded.name,
            where=where,
            remedy="Give it one: .python(function, …).",
        )
    remedy = 'Yield step("name").python(function, …); for plain work, do not yield.'
    if isinstance(yielded, GeneratorType):
        remedy = "Write 'yield from' to delegate to another generator."
    elif type(yielded) is NextGeneration:
        remedy = RETURN_IT
    elif isinstance(yielded, Workflow):
        remedy = 'Yield step("name").workflow(child, …) to run a workflow inside this one.'
    elif isinstance(yielded, list | tuple) and any(isinstance(each, Step) for each in yielded):
        remedy = "Yield parallel(*steps) to run them in parallel, or yield each of them in a loop."
    return WorkflowDefinitionError(
        f"workflow {workflow_name!r} yielded {short_repr(yielded, 120)} ({type(yielded).__name__}), which is not a step",
        where=where,
        remedy=remedy,
    )
