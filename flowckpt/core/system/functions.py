"""Values that are computed once for each function, and dropped with it.

A step's function may be nested, with a large value of its workflow in its closure. A cache that referred to the function
would keep that value alive long after the run. So the key is the function's address, and a weak reference removes the
entry together with the function.
"""

from __future__ import annotations

import functools
import linecache
import os
import re
import site
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import PathFinder, SourcelessFileLoader
from pathlib import Path
from types import FunctionType, MethodType, ModuleType, NoneType
from typing import Any, TypeVar

from flowckpt.core.system.ids import new_token

Key = TypeVar("Key")
Other = TypeVar("Other")
Value = TypeVar("Value")

MAX_KNOWN = 4096
"""Maximum entries of a cache: a program may keep any number of functions alive."""


_CACHES: list[dict[Any, Any]] = []


def forget_functions() -> None:
    """Clear all caches, because code that the functions use was reloaded."""
    for known in _CACHES:
        known.clear()


class _Entry(weakref.ref[Any]):
    """A function and its value in one object, so that a lookup touches only one."""

    __slots__ = ("place", "value")
    place: int
    value: Any


def cached_per_function(compute: Callable[[Key], Value]) -> Callable[[Key], Value]:
    """Cache a value for each function, by its identity, and keep neither of them alive.

    Functions without weak references (some builtins) are computed each time. So are bound methods, which are new objects
    at each access: pass their `__func__`. Safe in threads: concurrent calls may compute a value twice.

    Args:
        compute: returns the value, which must not refer to the function.
    """
    known: dict[int, _Entry] = {}
    _CACHES.append(known)
    return _cache_by_identity(compute, known)


def _cache_by_identity(compute: Callable[[Key], Value], known: dict[int, _Entry]) -> Callable[[Key], Value]:
    def forget(entry: Any) -> None:
        place = entry.place
        if known.get(place) is entry:  # unless it belongs to a new function at the same address
            known.pop(place, None)

    def value_of(function: Key) -> Value:
        entry = known.get(id(function))
        # The address alone proves nothing: a new function may get it before the old entry is removed.
        if entry is not None and entry() is function:
            found: Value = entry.value
            return found
        value = compute(function)
        try:
            made = _Entry(function, forget)
        except TypeError:
            return value
        made.place, made.value = id(function), value
        if len(known) >= MAX_KNOWN:
            known.clear()  # one operation, because another thread may be changing it
        known[made.place] = made
        return value

    return value_of


class PerFunction(dict["weakref.ref[Any]", Value]):
    """Values of plain functions, by `weakref.ref(function)`: a cached value is found without a call.

    For values needed at each yield; elsewhere `cached_per_function` is easier to read.

    Args:
        compute: returns the value of a function, which must not refer to it.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        super().__init__()
        self._compute = compute
        _CACHES.append(self)

    def __missing__(self, key: weakref.ref[Any]) -> Value:
        function = key()
        value = self._compute(function)
        if len(self) >= MAX_KNOWN:
            self.clear()
        self[weakref.ref(function, self._forget)] = value
        return value

    def _forget(self, key: weakref.ref[Any]) -> None:
        self.pop(key, None)


def per_pair(compute: Callable[[Key, Other], Value]) -> Callable[[Key, Other], Value]:
    """Cache a value for each pair of objects in the same way, such as a method's function and its class.

    Args:
        compute: returns the value, which must not refer to either of them.
    """

    @cached_per_function
    def with_first(first: Key) -> Callable[[Other], Value]:
        known: Any = weakref.ref(first)  # a strong reference would keep it alive
        return _cache_by_identity(lambda second: compute(known(), second), {})

    return lambda first, second: with_first(first)(second)


# --- the code of a callable ---------------------------------------------------------------------------------------------


_MOST_PARTS = 32
PLAIN = frozenset({bool, bytes, complex, float, int, str, NoneType})
"""The types of values that can always be compared."""
_WRAPPERS = frozenset({classmethod, functools.cached_property, property, staticmethod})


def parts_of(*functions: Any) -> tuple[FunctionType | type, ...]:
    """Return the functions and classes that callables run, as far as they refer to them directly."""
    seen: dict[int, Any] = {}
    waiting = [*functions]
    while waiting and len(seen) < _MOST_PARTS:
        part = waiting.pop(0)
        if part is None or id(part) in seen:
            continue
        seen[id(part)] = part
        if isinstance(part, functools.partial):
            waiting.append(part.func)
        elif type(part) is MethodType:
            waiting += [part.__func__, owner_class(part)]
        elif type(part) is FunctionType:
            waiting += [vars(part).get("__wrapped__"), *_closure_code(part)]
        elif not isinstance(part, type):
            call = getattr(type(part), "__call__", None)
            waiting += [type(part), call if type(call) is FunctionType else None, getattr(part, "__wrapped__", None)]
    return tuple(part for part in seen.values() if isinstance(part, FunctionType | type))


def owner_class(method: MethodType) -> type:
    """Return the class of a method, or of its object."""
    owner = method.__self__
    return owner if isinstance(owner, type) else type(owner)


def _closure_code(function: FunctionType) -> Iterator[FunctionType | type]:
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if isinstance(content, FunctionType | type):
            yield content


def is_code(value: Any) -> bool:
    """Return whether a value is a function or a class."""
    return type(value) is FunctionType or issubclass(type(value), type)  # an object may claim to be one


def functions_of(member: Any) -> list[FunctionType]:
    """Return a function, or those that a member of a class wraps."""
    names = ("__func__", "fget", "fset", "fdel", "func") if type(member) in _WRAPPERS else ()
    return [each for each in (member, *(getattr(member, name, None) for name in names)) if type(each) is FunctionType]


def methods_of(kind: Any) -> list[FunctionType]:
    """Return the functions in a class, those of properties included."""
    return [each for member in vars(kind).values() for each in functions_of(member)]


def plain_values(part: FunctionType | type) -> dict[Any, tuple[type, Any]]:
    """Return the simple values of a function's defaults or a class."""
    values: Mapping[Any, Any] = vars(part)
    if isinstance(part, FunctionType):
        values = {**dict(enumerate(part.__defaults__ or ())), **(part.__kwdefaults__ or {})}
    return {
        name: (type(each), each)
        for name, each in values.items()
        if type(each) in PLAIN and not str(name).startswith("__")
    }


def state_of(value: Any) -> Any:
    """Return what differs after a shell has replaced a value or has patched its code."""
    kind = type(value)
    if kind in PLAIN:
        return kind, value
    if kind is FunctionType:
        return [(each.__code__, plain_values(each)) for each in parts_of(value) if isinstance(each, FunctionType)]
    if not issubclass(kind, type):
        return [*map(state_of, functions_of(value))] if kind in _WRAPPERS else id(value)
    inner = f"{value.__qualname__}."
    members = {
        name: state_of(each)
        for name, each in vars(value).items()
        if not issubclass(type(each), type) or each.__qualname__.startswith(inner)
    }
    return id(value), members


def scope_of(module: str) -> dict[str, Any]:
    """Return the namespace of a module; empty if it is not loaded."""
    return getattr(sys.modules.get(module), "__dict__", {})


def name_of(part: FunctionType | type) -> tuple[str, str]:
    """Return the name of a function or class, and that in its code, which a wrapper does not take from its function."""
    return part.__qualname__, part.__code__.co_name if isinstance(part, FunctionType) else ""


# --- installed code ----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def is_installed(file: str) -> bool:
    """Return whether a file belongs to Python or to an installed package.

    Only the directories of this Python count, because a project may contain a virtualenv, or be inside some other
    `site-packages`. Links are followed, because a project linked into `site-packages` is still being developed.
    """
    path = Path(file).resolve()
    return any(path.is_relative_to(directory) for directory in _installed_directories())


@functools.cache
def _installed_directories() -> frozenset[Path]:
    # From `site`, which Python imports at its start; importing `sysconfig` takes 4 ms.
    prefixes = dict.fromkeys([sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix])
    standard = str(Path(str(linecache.__file__)).parent)
    paths = [standard, *site.getsitepackages(list(prefixes)), site.getusersitepackages()]
    return frozenset(Path(path).resolve() for path in paths)


def find_module(name: str) -> tuple[str, tuple[str, ...]]:
    """Return the file of a module, and the directories of a package, without importing it."""
    parent, _, _ = name.rpartition(".")
    path: Any = None
    if parent:
        held = getattr(sys.modules.get(parent), "__path__", None)
        path = list(held) if held is not None else [*find_module(parent)[1]]
        if not path:
            return "", ()
    try:
        spec = PathFinder.find_spec(name, path)
    except (ImportError, ValueError, AttributeError):
        return "", ()
    if spec is None:
        return "", ()
    file = spec.origin if spec.has_location and spec.origin else ""
    return file, tuple(spec.submodule_search_locations or ())


PROCESS_NAME = new_token(8)
"""A random name of this process and those that it forks, which run the same code."""

_NO_FILE = (0, 0)
_LOADED: dict[str, tuple[object, int, tuple[int, int]]] = {}
"""The modules that were loaded when a workflow was defined: what identifies the import, the time in ns since 1970,
and the status of the file; see `status_of`."""


def note_loaded_modules(scope: Mapping[str, Any]) -> None:
    """Note which modules have read their files by now; called when a workflow is defined.

    Args:
        scope: the namespace of the workflow's module.
    """
    now = time.time_ns()
    modules = sys.modules
    new = [modules.get(name) for name in modules.keys() - _LOADED.keys()]
    # A lazy module would be loaded by any other access, and isinstance() believes what an object claims to be.
    scopes = [object.__getattribute__(module, "__dict__") for module in new if issubclass(type(module), ModuleType)]
    for each in (*scopes, scope):
        name, load = each.get("__name__", ""), _identify_import(each)
        if name not in _LOADED or _LOADED[name][0] is not load:
            _LOADED[name] = load, now, status_of(each.get("__file__") or "")


def _identify_import(scope: Mapping[str, Any]) -> object:
    """Return the spec of a module, which differs after a reload; a script has none, and its namespace does."""
    spec = scope.get("__spec__")
    return scope if spec is None else spec


_FUTURE: dict[str, set[int]] = {}
"""The times of change that were in the future when they were read: the clock of a file server is ahead, or ours was set back."""


def is_edited(file: str, scope: Mapping[str, Any]) -> bool:
    """Return whether a module's file was written after the module had read it, as far as that is known.

    The time of the last change of the inode counts, too: tools that copy files keep the time of their content. A time in
    the future says nothing. Bytecode that was made from another text counts, too.

    Args:
        file: the file.
        scope: the namespace of the module.
    """
    try:
        status = os.stat(file)  # noqa: PTH116 - half the time of a Path
    except OSError:  # a cell of a notebook
        return False
    if _has_old_bytecode(file, status, getattr(scope.get("__spec__"), "cached", None)):
        return True
    load, noted_at, was = _LOADED.get(scope.get("__name__", ""), (None, 0, _NO_FILE))
    if load is not _identify_import(scope):
        return False
    if was not in (_NO_FILE, (status.st_mtime_ns, status.st_size)):  # or an older file: a deployment switched a link
        return True
    later = {each for each in (status.st_mtime_ns, status.st_ctime_ns) if each > noted_at}
    if later:
        future = _FUTURE.setdefault(file, set())
        future |= {each for each in later if each > time.time_ns()}
        later -= future
    return bool(later)


def _has_old_bytecode(file: str, status: os.stat_result, cached: object) -> bool:
    """Return whether Python takes bytecode for that of a file's text which was made from an older text of the same length.

    Its header has the time of the text in whole seconds only, so an edit within the second of the import goes unnoticed.

    Args:
        file: the file.
        status: the status of the file.
        cached: the path of the bytecode, if there is any.
    """
    try:
        if not isinstance(cached, str) or os.stat(cached).st_mtime_ns >= status.st_mtime_ns:  # noqa: PTH116 - as above
            return False
        data, text = Path(cached).read_bytes(), Path(file).read_bytes()
        header = (0, int(status.st_mtime), len(text))
        if data[4:16] != b"".join((each & 0xFFFFFFFF).to_bytes(4, "little") for each in header):
            return False
        # The text may have been written again unchanged.
        return SourcelessFileLoader("", cached).get_code("") != compile(text, file, "exec", dont_inherit=True)
    except (ImportError, OSError, ValueError, EOFError, TypeError, SyntaxError):
        return False


def status_of(file: str) -> tuple[int, int]:
    """Return the time of the last change of a file in ns and its size; zeros if there is no such file."""
    try:
        status = os.stat(file)  # noqa: PTH116 - half the time of a Path
    except (OSError, TypeError, ValueError):  # no path at all
        return _NO_FILE
    return status.st_mtime_ns, status.st_size


def is_reloaded(scope: Mapping[str, Any]) -> bool:
    """Return whether a module was loaded again since a workflow was first defined.

    Args:
        scope: the namespace of the module.
    """
    noted = _LOADED.get(scope.get("__name__", ""))
    return noted is not None and noted[0] is not _identify_import(scope)


def versions_of(modules: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that contain modules, by the module's name.

    They are read from the names of `.dist-info` directories: importing `importlib.metadata` takes ten times as long as
    listing all directories.

    Args:
        modules: names of top-level modules.
    """
    wanted = sorted(modules)
    installed = _list_installed() if wanted else {}
    return {name: version for name in wanted if (version := _version(name, installed))}


def _list_installed() -> dict[str, tuple[str, Path]]:
    lists = [_distributions(place) for place in dict.fromkeys(map(os.path.abspath, sys.path))]
    known, merged = _MERGED[0]
    if list(map(id, known)) != list(map(id, lists)):
        merged = {}
        for name, version, entry in (each for found in lists for each in found):
            merged.setdefault(name, (version, entry))
        _MERGED[0] = lists, merged
    return merged


_LISTED: dict[str, tuple[int, list[tuple[str, str, Path]]]] = {}
"""The listed directories with their modification times, because a program may resume several runs."""
_MERGED: list[tuple[list[list[tuple[str, str, Path]]], dict[str, tuple[str, Path]]]] = [([], {})]
"""The last joined lists and the result, so that the same lists are not joined twice."""


def _distributions(place: str) -> list[tuple[str, str, Path]]:
    try:
        changed = os.stat(place).st_mtime_ns  # noqa: PTH116 - a path of ten parts is a tenth of a millisecond
        known = _LISTED.get(place)
        if known is not None and known[0] == changed:
            return known[1]
        names = sorted(name for name in os.listdir(place) if name.endswith(".dist-info"))  # noqa: PTH208 - 100 times as fast
    except OSError:
        return _NOTHING
    parts = [(name, name.removesuffix(".dist-info").rpartition("-")) for name in names]
    found = [(_normalize(package), version, Path(place, name)) for name, (package, _, version) in parts]
    if time.time_ns() - changed > 1_000_000_000:  # otherwise a change within the same clock tick would go unnoticed
        _LISTED[place] = changed, found
    return found


_NOTHING: list[tuple[str, str, Path]] = []


def _version(module: str, installed: Mapping[str, tuple[str, Path]]) -> str:
    known = installed.get(_normalize(module))
    if known is not None:
        return known[0]
    for version, entry in installed.values():  # `yaml` belongs to PyYAML, `sklearn` to scikit-learn
        try:
            record = (entry / "RECORD").read_bytes()
        except OSError:
            continue
        if re.search(rb"^%b(?:/|\.py,|\.[^/,]*\.so,)" % re.escape(module.encode()), record, re.MULTILINE):
            return version
    return ""


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
