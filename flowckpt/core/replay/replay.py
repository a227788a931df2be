"""Replay, with no I/O, no clock and no loop: a generator and a record in, commands out.

The rules:

1. The generator is driven by `start()`, then by `send(value)` or `throw(error)` for each command it was given.
2. A yielded step has a *path*: its name, and its occurrence where the name was used before. Paths are counted in the
   order of the yields, which is the same in every execution of a deterministic generator.
3. A path that is in the record is a `Restore`, whatever place it has there. A path that is not is an `Execute`,
   but only when the whole record has been used: while recorded results wait for their step, a step that the record
   does not know means that the code has changed, and running it could do anything. That is `WorkflowChangedError`.
   The exception is `patched()`, which is answered with False then: the run came by before the patch was there.
4. Ephemeral steps are never in the record: they are an `Execute` at each replay.
5. The end of the generator is a `Finish` or a `Crash`; before the whole record was used it is a change, like rule 3.
6. The driver may answer a `Restore` with `rerun`: the result is no longer true, and the command becomes an
   `Execute`. From then on the record binds nothing: what the generator yields may depend on what the step returns now.
   The results that wait are dropped, or become spare: a step that is yielded again may get its spare result back.

So nothing is executed (but ephemeral steps) until every recorded result has found its step, or one was found untrue.

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
from flowckpt.core.dsl.checks import CREATED, check_depth, encode_name, refused_step, unknown_to_undo
from flowckpt.core.dsl.step import PythonAction
from flowckpt.core.dsl.workflow import RETURN_IT
from flowckpt.core.records import StepResult
from flowckpt.core.records.result import UNREAD
from flowckpt.core.replay.logger import begin_repeating, end_repeating
from flowckpt.core.system.attrs_base import FieldEquality, lazy_define
from flowckpt.core.system.declared import shown
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
    """Whether the result is no longer, or not yet again, part of the run."""


@lazy_define(eq=False, repr=False)
class Enter:
    """Go into this step, which is made of steps: they have records of their own, and some may have to run."""

    path: str
    step: Step[Any]
    location: str
    result: StepResult | None = None
    """Its own recorded result; None where it has not ended."""
    nested: Sequence[StepResult] = ()
    """The recorded results of its steps, and of theirs."""
    is_spare: bool = False
    """Whether the results are no longer, or not yet again, part of the run."""
    is_bound: bool = True
    """Whether its steps must be those of the record."""


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
"""Returns the output of a recorded plain step where nothing has to be asked or emitted; else `UNREAD`."""


# Where a generator stands, for records and for people.


_STEP_ITER: CodeType = Step.__iter__.__code__


def where_of(generator: Any, *, full: bool = False) -> str:
    """Return `file:line` of the `yield` that a generator stands at, inside generators it delegates to.

    The record gets the bare file name: the same code in another directory is the same code.

    Args:
        generator: the generator; where it has ended, an empty text is returned.
        full: with the file's directory.
    """
    frames = standing_frames(generator)
    if not frames:
        return ""
    file = frames[-1].f_code.co_filename
    return f"{file if full else _base_name(file)}:{frames[-1].f_lineno}"


def standing_frames(generator: Any) -> list[FrameType]:
    """Return the frames of a generator that stands at a `yield`, then those of the generators it delegates to."""
    found = generator
    frames: list[FrameType] = []
    while type(found) is GeneratorType and found.gi_code is not _STEP_ITER and found.gi_frame is not None:
        frames.append(found.gi_frame)
        found = found.gi_yieldfrom
    return frames


@functools.lru_cache(maxsize=256)
def _base_name(file: str) -> str:
    return PurePath(file).name


# The recorded results as a generator meets them: its own steps by path, and what is nested in them.
#
# The history is flat, in the order in which results came. A generator knows the paths of its own steps alone; a result
# further down (`pages/[17]`, `train/fit`) belongs to the step that it is nested in, and waits together with it.


Own = dict[str, StepResult | None]
"""The results of a generator's own steps; None for one that has not ended, although steps nested in it have."""
Nested = dict[str, list[StepResult]]


def split_record(recorded: Iterable[StepResult], prefix: str = "") -> tuple[Own, Nested]:
    """Split results into a generator's own and those nested in its steps.

    Args:
        recorded: the results, in the order of the history.
        prefix: what the paths of its steps begin with.
    """
    own: Own = {result.path: result for result in recorded}
    if prefix:  # in a member that a race stopped: how its steps were undone answers no step
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
    """Results and waits that a record holds beside those of the run: one for all the generators of a run.

    Attributes:
        dropped: recorded results that are no longer part of the run.
        spare: results that steps may get back when they are yielded, by path.
        waiting: the steps that the record shows as waiting.
    """

    dropped: list[StepResult] = attrs.field(factory=list)
    spare: dict[str, StepResult] = attrs.field(factory=dict)
    waiting: set[str] = attrs.field(factory=set)

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
        prefix: what the paths of its steps begin with: those of a child have their place under it.
        drops_what_changed: whether the record gives way where the generator yields something else.
        spare: results that are not part of the run, and that its steps may get back when they are yielded.
        aside: where results go that no longer count, and spare ones come from: that of the run, for a child.
        is_repeated: whether the generator ran before, so that its code is repeated until a step is run again.
        is_muted: whether it counts as repeated to its end: nothing is run.
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
        """The start of the paths of its steps."""
        self._is_bound = not drops_what_changed
        self._waiting, self._nested = split_record(recorded, prefix)
        self.aside = DroppedResults(spare=dict(spare or {}), waiting={*waiting}) if aside is None else aside
        """Results that are no longer, or not yet again, part of the run."""
        self.is_handling = False
        """Whether a failure was raised in the generator, and what it does about it has not started."""
        self._uses: dict[str, int] = {}
        self._places: dict[int, str] = {}
        self._ephemeral: set[str] = set()
        self._patches: dict[str, bool] = {}
        self._is_repeated = is_repeated or is_muted
        self._is_muted = is_muted
        self._is_new = False  # the command that stands is run now, and was not answered from the record

    def start(self, glance: Glance | None = None) -> Command:
        """Run the generator up to its first step.

        Args:
            glance: as for `send`.

        Raises:
            WorkflowChangedError: what it did is not what the record says; the generator is closed.
        """
        return self.send(None, glance)

    def send(self, value: Any, glance: Glance | None = None) -> Command:
        """Answer the last command with a value.

        Args:
            value: the step's output.
            glance: answers the recorded plain steps that follow: they are no commands.

        Raises:
            WorkflowChangedError: what the generator does next is not what the record says; it is closed.
            WorkflowDefinitionError: it yields something that is not a step; it is closed.
        """
        if glance is not None and self._waiting and self._is_repeated and not self._is_new:
            return self._restore_plainly(value, glance)
        try:
            yielded = self._generator.send(value) if not self._is_repeated else self._again(self._generator.send, value)
        except StopIteration as stop:
            return self._finished(stop.value)
        except BaseException as error:
            return self._raised(error)
        return self._command(yielded)

    def _restore_plainly(self, value: Any, glance: Glance) -> Command:
        """Send a value, then the outputs of plain steps, up to the first step that a glance is not enough for."""
        send, prefix, waiting, uses = self._generator.send, self.prefix, self._waiting, self._uses
        created, name, first = CREATED.get(), "", ""
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
            return self._command(yielded)
        try:
            return self._finished(ended.value) if isinstance(ended, StopIteration) else self._raised(ended)
        finally:
            ended = None  # its traceback holds this frame

    def throw(self, error: BaseException) -> Command:
        """Answer the last command with an error, raised at its `yield`.

        Args:
            error: what to raise there.

        Raises:
            WorkflowChangedError: as for `send`.
            WorkflowDefinitionError: as for `send`.
        """
        self.is_handling = True
        try:
            throw = self._generator.throw
            yielded = throw(error) if not self._is_repeated else self._again(throw, error)
        except StopIteration as stop:
            return self._finished(stop.value)
        except BaseException as raised:
            return self._raised(raised)
        return self._command(yielded)

    def _again(self, go_on: Callable[[Any], Any], answer: Any) -> Any:
        """Drive the generator where its code may be repeated."""
        if self._is_new and not self._is_muted:
            self._is_repeated = False
            return go_on(answer)
        token = begin_repeating(True)
        try:
            return go_on(answer)
        finally:
            end_repeating(token)

    def rerun(self, command: Restore, *, keeps_rest: bool) -> Execute:
        """Answer a `Restore` with the news that its result is no longer true.

        Args:
            command: the command.
            keeps_rest: whether the results that still wait become spare; else they are dropped, too.

        Returns:
            What to do instead.
        """
        self.aside.dropped.append(command.result)
        self.begin_anew(keeps_rest=keeps_rest)
        return Execute(command.path, command.step, self.where())

    def begin_anew(self, *, keeps_rest: bool) -> None:
        """Free the generator from its record: a step of it, or one nested in that, is no longer true.

        Args:
            keeps_rest: as for `rerun`.
        """
        self._is_bound, self._is_new = False, True
        if keeps_rest:
            self.aside.spare.update({each.path: each for each in all_of(self._waiting, self._nested)})
            self._waiting, self._nested = {}, {}
        self._drop_rest()

    def begin(self, command: Enter) -> None:
        """Note that a step that is made of steps starts or continues: some of its steps have to run.

        Args:
            command: the command.

        Raises:
            WorkflowChangedError: other recorded results still wait for their step.
        """
        self._is_new = True
        if self._waiting:
            if self._is_bound:
                what = f"continues the step {command.path!r}, which has ended in the record"
                raise self._changed(what, self._describe(command.path, command.step))
            self._drop_rest()

    def close(self) -> BaseException | None:
        """Close the generator, so that its `finally` blocks run; return what they raised, if anything."""
        try:
            self._generator.close()
        except BaseException as error:
            return error
        return None

    def _command(self, yielded: Any) -> Command:
        if type(yielded) is not Step:
            raise self._closed(_no_step(yielded, self._workflow_name, self.where()))
        step: Step[Any] = yielded
        action, modifiers = step.action, step.modifiers
        if (created := CREATED.get()) is not None:
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
                return self._entered(path, step)
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
        """Refuse modifiers that make no sense with the action, or with each other."""
        action, modifiers = step.action, step.modifiers
        if modifiers.adopt is not None and not modifiers.is_at_most_once:
            raise self._closed(_needless_adopt(step.name, self.where(full=True)))
        if modifiers.rollback is not None and (unknown := unknown_to_undo(step)):
            raise self._closed(_no_such_argument(step, unknown, self.where(full=True)))
        if action.refused and (refused := action.refused_modifier(modifiers)):
            raise self._closed(_no_such_modifier(step, refused, self.where(full=True)))

    def _is_patched(self, name: str) -> bool | None:
        """Return what a patch was answered before; None where the record, or a new result, says it.

        A run that has recorded results after this place and none for it came by before the patch was there, and so did a run
        that waits at a step after it.
        """
        known = self._patches.get(name)
        if known is None:
            is_recorded = self.prefix + encode_name(name) in self._waiting
            is_taken = self._patches[name] = is_recorded or not (self._waiting or self._waits_later())
            return None if is_taken else False
        return known

    def _waits_later(self) -> bool:
        """Return whether the record shows that the generator came to a wait that it has not come to in this replay."""
        start = len(self.prefix)
        own = {each[start:].partition("/")[0] for each in self.aside.waiting if each.startswith(self.prefix)}
        return bool(own) and not own <= {
            encode_name(name) + f"[{number}]" * (number > 0)
            for name, uses in self._uses.items()
            for number in range(uses)
        }

    def _entered(self, path: str, step: Step[Any]) -> Enter:
        """Return the command for a step that is made of steps."""
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
        """Refuse a step that the record does not have while recorded results wait; or drop these."""
        if self._is_bound:
            what = f"yields the step {path!r}, which the record does not have"
            raise self._changed(what, self._describe(path, step))
        self._drop_rest()

    def _drop_mismatch(self, path: str, step: Step[Any], result: StepResult | None, *, is_spare: bool) -> None:
        """Drop the result of another step under the same path, or refuse the change."""
        if self._is_bound and not is_spare:
            self._waiting = {path: result, **self._waiting}
            raise self._changed(f"yields another step under the path {path!r}", self._describe(path, step))
        self.aside.dropped += all_of({path: result}, {path: self._nested.pop(path, [])})
        self._drop_rest()

    def _drop_rest(self) -> None:
        self.aside.dropped += all_of(self._waiting, self._nested)
        self._waiting, self._nested = {}, {}

    def _finished(self, output: Any) -> Command:
        if self._waiting:
            if self._is_bound:
                raise self._changed("returns before the record ends", f"return {shown(output, 80)}")
            self._drop_rest()
        if type(output) is NextGeneration:
            if (created := CREATED.get()) is not None:
                created.pop(id(output), None)
            if self.prefix:
                raise self._closed(_no_generation(self._workflow_name, self.prefix, output.where))
        elif output is continue_as:
            raise self._closed(
                WorkflowDefinitionError(
                    f"workflow {self._workflow_name!r} returned the function continue_as without calling it",
                    remedy=RETURN_IT,
                )
            )
        return Finish(output)

    def _raised(self, error: BaseException) -> Command:
        if self._waiting and isinstance(error, Exception):
            if isinstance(error, StepFailedError) and error.path in self._ephemeral:
                return Crash(error)  # it failed now: a server that is down is not a changed workflow
            if self._is_bound:
                raise self._changed("raises before the record ends", f"raise {_raised_text(error)}") from error
            self._drop_rest()
        return Crash(error)

    def _changed(self, what: str, yielded: str) -> BaseException:
        path, first = next(iter(self._waiting.items()))
        if first is None:  # a step that is made of steps, and was not finished
            recorded = f"step {path!r}, with {len(self._nested.get(path, ()))} steps of its own"
        else:
            recorded = f"step {path!r} ({first.step_type} {first.function}".rstrip() + ")"
            if first.location:
                recorded += f" at {first.location}"
        return self._closed(
            WorkflowChangedError(
                f"workflow {self._workflow_name!r} {what}: recorded {recorded}; now {yielded}",
                workflow_name=self._workflow_name,
                recorded=recorded,
                yielded=yielded,
                remedy="No recorded step was run, and nothing was saved. Restore the code that wrote the record and resume; "
                "or resume with --from STEP, to run everything again from a step on, or with --force, to run everything "
                "again from here on.",
            )
        )

    def _describe(self, path: str, step: Step[Any]) -> str:
        action = step.action
        return f"step {path!r} ({action.step_type} {action.function_name}".rstrip() + f") at {self.where(full=True)}"

    def _closed(self, error: BaseException) -> BaseException:
        self.close()
        return error

    def frames(self) -> list[FrameType]:
        """Return the frames of the generator that stands at a `yield`, and of those it delegates to."""
        return standing_frames(self._generator)

    def where(self, *, full: bool = False) -> str:
        """Return `file:line` of the `yield` that the generator stands at; empty after its end."""
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


def _raised_text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except Exception:
        return type(error).__name__


def _qualname(function: str) -> str:
    """Return the name of a function without its module: code that moves to another file is the same code."""
    return function[function.find(":") + 1 :]


def is_another(step: Step[Any], result: StepResult) -> bool:
    """Tell whether a recorded result is that of another step: of another kind, or of another function.

    Args:
        step: the step as it is yielded now.
        result: the recorded result of its path.
    """
    action = step.action
    named = action.function_name
    return result.step_type != action.step_type or (
        result.function != named and _qualname(result.function) != _qualname(named)
    )


def _no_such_modifier(step: Step[Any], modifier: str, where: str) -> StepDefinitionError:
    action = step.action
    remedy = "Give it to the steps that it is made of."
    if modifier == "on":
        remedy = "It is for .python(), and for a .map() of a function: leave it out."
    elif action.is_waiting:
        remedy = "Leave it out."
        if modifier == "timeout":
            remedy = f"Say how long to wait: .{action.step_type}(…, timeout=60)."
        elif modifier == "evidence":
            remedy = "An approval is bound to claims by .approval(of=[…]); else claim it of the step that follows."
    return refused_step(step.name, f".{modifier}() makes no sense with .{action.step_type}()", remedy, where=where)


def _no_such_argument(step: Step[Any], parameter: str, where: str) -> StepDefinitionError:
    known = ", ".join(map(repr, step.action.parameters)) or "none that has a name"
    return refused_step(
        step.name,
        f".rollback() wants the argument {parameter!r}, which the step does not have",
        f"Its first parameter gets the output, the others arguments of the step by name; the step has {known}.",
        where=where,
    )


def _needless_adopt(name: str, where: str) -> StepDefinitionError:
    return refused_step(
        name,
        "it has .adopt(), but no .at_most_once()",
        "Only a step that is to be done at most once is ever adopted: add .at_most_once(), or leave .adopt() out.",
        where=where,
    )


def _no_generation(workflow_name: str, prefix: str, where: str) -> WorkflowDefinitionError:
    return WorkflowDefinitionError(
        f"child workflow {workflow_name!r} at {prefix[:-1]!r} returned continue_as(…): a child has no generations of its own",
        where=where,
        remedy="Return continue_as(…) from the workflow of the run, repeat the child in a loop of its parent, or start it as "
        "a run of its own: step(…).start(workflow, …).",
    )


def _no_step(yielded: object, workflow_name: str, where: str) -> StepDefinitionError | WorkflowDefinitionError:
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
        f"workflow {workflow_name!r} yielded {shown(yielded, 120)} ({type(yielded).__name__}), which is not a step",
        where=where,
        remedy=remedy,
    )
