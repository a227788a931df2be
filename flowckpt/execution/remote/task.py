"""Tasks for a worker, as bytes: a function with its arguments and the facts about the step; and the try in the worker.

They are packed here and not by the executor, so that an error about an unpicklable value names it, before anything is
sent, and in the same way for every executor.

The worker never returns its own objects: an output is returned encoded, and an exception as its record. So nothing is
lost because it cannot be pickled, and the engine never builds objects that a worker chose.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.machinery
import importlib.util
import inspect
import io
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs

from flowckpt.core import codec
from flowckpt.core.codec.annotations import return_annotation
from flowckpt.core.dsl.modifiers import RetryPolicy
from flowckpt.core.dsl.step import PythonAction
from flowckpt.core.records import StepError
from flowckpt.core.system import external
from flowckpt.core.system.declared import module_name, type_name
from flowckpt.core.system.process import hold_name
from flowckpt.errors import NotSendableError
from flowckpt.execution.current_step import CurrentStep, StepCall, set_call
from flowckpt.execution.errors import read_retry_after, record_error, text_of
from flowckpt.execution.executors.base import WayUp, way_up
from flowckpt.execution.remote import LOADED_FROM_FILE, Loading
from flowckpt.execution.remote.channel import RemoteStepServices, StepSnapshot, read_plain
from flowckpt.execution.thread import AbandonedStepError

# The modules of the program, for a worker process.
#
# Pickles contain names of modules. Most modules can be imported anywhere, except two kinds: the script that was run
# (`__main__`), and a file that was loaded by its path. For these, the engine sends their locations, and the worker
# loads them when they are needed. The script is loaded under another name than `__main__`, so that its main code does
# not run.


MAIN = "__main__"
LOADED_MAIN = "__mp_main__"
"""The name that Python's own worker processes give the script."""

ModulePlaces = Mapping[str, tuple[str, str]]
"""The files of modules that cannot be imported, by name, and the package of a script run with `-m`."""


def find_module_places() -> dict[str, tuple[str, str]]:
    """Return the locations of this program's modules that another process cannot import by name."""
    places = {}
    for name, module in list(sys.modules.items()):
        if name != MAIN and LOADED_FROM_FILE in getattr(module, "__dict__", ()):
            places[name] = str(Path(module.__file__ or "").absolute()), ""
    main = sys.modules.get(MAIN)
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if file is not None and Path(file).is_file():
        places[MAIN] = str(Path(file).absolute()), "" if spec is None else str(spec.parent)
    return places


def provide(name: str, places: ModulePlaces) -> None:
    """Load a module that cannot be imported by name, if its location is known."""
    if name not in places:
        return
    file, package = places[name]
    if _is_loaded(name, file):
        return
    was_loading, Loading.is_under_way = Loading.is_under_way, True
    try:
        if name == MAIN:
            sys.modules[MAIN] = _load(f"{package}.{LOADED_MAIN}" if package else LOADED_MAIN, file)
        else:
            _load(name, file)
    finally:
        Loading.is_under_way = was_loading


def name_in_engine(name: str) -> str:
    """Return the name that a class of the script, sent by value, has in the process in which the script was run."""
    rest = name.removeprefix(f"{MAIN}.")
    return name if rest == name else f"{module_name(MAIN)}.{rest}"


def _is_loaded(name: str, file: str) -> bool:
    known = getattr(sys.modules.get(name), "__file__", None)
    return known is not None and str(Path(known).absolute()) == file


def _load(name: str, file: str) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(name, file)  # a script need not have the extension .py
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    setattr(module, LOADED_FROM_FILE, True)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


FORM = 7
"""The version of the format of parcels and answers; both ends must have the same."""


def pack_task(
    action: PythonAction, call: StepCall, snapshot: StepSnapshot, places: ModulePlaces, *, by_value: bool
) -> bytes:
    """Return the bytes to send for one try of a step.

    Args:
        action: the function and its arguments.
        call: the step.
        snapshot: the facts about the step to send with it.
        places: the locations of the program's modules that cannot be imported by name.
        by_value: whether to send the code of the program's own files too, if cloudpickle is installed: for workers
            without these files.

    Raises:
        NotSendableError: the function or an argument cannot be pickled.
    """
    dump: Callable[[Any], bytes]
    dump, sending = _choose_pickler(places) if by_value else (pickle.dumps, contextlib.nullcontext())
    function, executor = action.function, snapshot.executor
    if dump is pickle.dumps and getattr(function, "__module__", "") == MAIN and MAIN not in places:
        raise _not_sendable_error(action, call.path, executor, "the function", function, "it is not in a file")
    with sending:
        try:
            calling = dump((function, action.args, dict(action.kwargs)))
        except Exception as error:
            raise _find_unsendable(action, call.path, executor, dump, error) from error
        asking, retry = b"", call.modifiers.retry
        if retry is not None and (functions := retry.only(functions=True)).on:
            with suppress(Exception):  # a lambda: the failure will say that it was not asked
                asking = dump(functions)
    known = (call.workflow_id, call.path, call.attempt, call.tries, dict(call.identity.arguments), call.generation)
    return pickle.dumps((FORM, places, known, tuple(snapshot), calling, asking))


def unpack_task(
    parcel: bytes, way: WayUp | None
) -> tuple[
    CurrentStep,
    RemoteStepServices,
    Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]],
    Callable[[], RetryPolicy | None],
]:
    """Return the step's view of itself, its services, and functions that unpickle its call and its retry policy.

    The call is its function with its arguments; the policy has only the functions of `.retry(on=…)`, if there are any.

    Args:
        parcel: the bytes of `pack_task`.
        way: the connection to the engine, or None.

    Raises:
        ValueError: the parcel is from another version of flowckpt.
    """
    form, *rest = pickle.loads(parcel)  # noqa: S301 - the engine's own; the process that can send to a worker runs code there
    if form != FORM:
        raise ValueError(f"the engine sends steps in form {form}, and the flowckpt of this worker reads form {FORM}")
    places, (run, path, attempt, tries, arguments, generation), fields, calling, asking = rest
    snapshot = StepSnapshot(*fields)
    services = RemoteStepServices(snapshot, way)
    current = CurrentStep(run, path, attempt, tries, arguments, services, snapshot.most_tries, None, generation)

    def load_policy() -> RetryPolicy | None:
        loaded = {name: each for name, each in places.items() if _is_loaded(name, each[0])}
        return _Unpickler(io.BytesIO(asking), loaded).load() if asking else None

    return current, services, lambda: _Unpickler(io.BytesIO(calling), places).load(), load_policy


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, places: ModulePlaces) -> None:
        super().__init__(stream)
        self._places = places

    def find_class(self, module: str, name: str, /) -> Any:
        provide(module, self._places)
        return super().find_class(module, name)


def _choose_pickler(places: ModulePlaces) -> tuple[Callable[[Any], bytes], contextlib.AbstractContextManager[None]]:
    try:
        dump: Callable[[Any], bytes] = external.cloudpickle.dumps
    except ImportError:
        return pickle.dumps, contextlib.nullcontext()
    return dump, _pickle_by_value(places)


@contextlib.contextmanager
def _pickle_by_value(places: ModulePlaces) -> Iterator[None]:
    """Send the code of modules that were loaded by path; the code of `__main__` is always sent."""
    modules = [sys.modules[name] for name in places if name != MAIN]
    for module in modules:
        external.cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            with contextlib.suppress(ValueError):
                external.cloudpickle.unregister_pickle_by_value(module)


def _find_unsendable(
    action: PythonAction, path: str, executor: str, dump: Callable[[Any], bytes], error: Exception
) -> NotSendableError:
    """Return the error that names the part which cannot be sent."""
    for place, value in _list_parts(action):
        try:
            dump(value)
        except Exception as failure:
            return _not_sendable_error(action, path, executor, place, value, _format_error(failure))
    return _not_sendable_error(action, path, executor, "what it is called with", action.args, _format_error(error))


def _list_parts(action: PythonAction) -> Iterator[tuple[str, Any]]:
    yield "the function", action.function
    try:
        names = [
            each.name
            for each in inspect.signature(action.function).parameters.values()
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):  # a builtin without a signature
        names = []
    for index, value in enumerate(action.args):
        yield (f"argument {names[index]!r}" if index < len(names) else f"argument {index + 1}"), value
    for name, value in action.kwargs.items():
        yield f"argument {name!r}", value


def _not_sendable_error(
    action: PythonAction, path: str, executor: str, place: str, value: Any, detail: str
) -> NotSendableError:
    remedy = (
        "Define it at the top of a module or script, not inside a function, or remove .on()."
        if value is action.function
        else "Send the data, a path or an address, and create it in the step's function; or remove .on()."
    )
    return NotSendableError(
        path, executor=executor, place=place, type_name=type_name(type(value)), detail=detail, remedy=remedy
    )


def _format_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}" if str(error) else type(error).__name__


DONE, FAILED, UNREADABLE = "done", "failed", "unreadable"


def work(parcel: bytes) -> bytes:
    """Do one try of a step and return its outcome as bytes."""
    path = ""
    try:
        now, services, call, load_policy = unpack_task(parcel, way_up.get())
        path = now.path
        function, args, kwargs = call()
    except AbandonedStepError:
        raise
    except BaseException as error:
        return pickle.dumps((UNREADABLE, (type_name(type(error)), text_of(error)), False, {}, {}))
    token = set_call(now)
    try:
        # By its name, a resume finds a worker that has outlived its engine.
        with hold_name(services.mark), _unpickle_context(services.baggage):
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                value = asyncio.run(await_value(value))
        tree = codec.encode(value, return_annotation(function), place=f"{path}: output")
    except AbandonedStepError:
        services.close(waits=False)
        raise
    except BaseException as error:
        services.close()
        is_wanted = _ask(load_policy, error)
        failure = _rename_script(record_error(error, path=path, tries=now.tries, is_whole=True))
        delay = read_retry_after(error, datetime.now(UTC))
        content = attrs.asdict(failure), isinstance(error, Exception), delay, is_wanted
        return pickle.dumps((FAILED, content, services.is_unheard, services.figures, services.published))
    finally:
        token.var.reset(token)
    services.close()
    return pickle.dumps((DONE, tree, services.is_unheard, services.figures, services.published))


def _ask(load_policy: Callable[[], RetryPolicy | None], error: BaseException) -> bool | None:
    """Return whether a function of `.retry(on=…)` wants another try; None if there is none that could be asked."""
    try:
        policy = load_policy()
    except AbandonedStepError:
        raise
    except BaseException:  # its module may exit
        return None
    return None if policy is None else policy.should_retry(error, warn=lambda why: error.add_note(f"{why[:500]}."))


def unpack_answer(answer: Any) -> tuple[str, Any, bool, Mapping[str, Any], Mapping[str, Any]]:
    """Unpack the bytes of `work`: kind, content, whether progress could not be sent, figures, and published values.

    The content is a tree; or a `StepError`, whether it was an `Exception`, the seconds to wait before another try, and
    whether a function of `.retry(on=…)` wants one.

    Args:
        answer: the bytes.

    Raises:
        ValueError: the answer is invalid.
    """
    kind, content, is_unheard, figures, published = read_plain(answer)
    if not isinstance(figures, dict) or not all(isinstance(name, str) for name in figures):
        raise ValueError(f"a worker answered with the figures {figures!r:.80}")
    published = dict(published)
    if kind == FAILED:
        fields, is_exception, delay, is_wanted = content
        fields["bases"], fields["causes"] = tuple(fields["bases"]), tuple(fields["causes"])
        error = StepError(**fields), is_exception, float(delay), is_wanted
        return kind, error, bool(is_unheard), figures, published
    if kind not in (DONE, UNREADABLE):
        raise ValueError(f"a worker answered with {kind!r:.80}")
    return kind, content, bool(is_unheard), figures, published


def _unpickle_context(parcel: bytes) -> AbstractContextManager[object]:
    """Return the context manager to enter around the function; nothing if it cannot be unpickled here."""
    if parcel:
        with suppress(Exception):
            context: AbstractContextManager[object] = pickle.loads(parcel)  # noqa: S301 - the engine's own, as the function
            return context
    return nullcontext()


async def await_value(value: Any) -> Any:
    """Await a value, for `asyncio.run`."""
    return await value


def _rename_script(error: StepError) -> StepError:
    """Rename classes of the script to the names that they have where it was run."""
    return attrs.evolve(error, type=name_in_engine(error.type), bases=tuple(map(name_in_engine, error.bases)))
