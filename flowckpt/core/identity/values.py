"""The recorded form of a value that identifies a call: an argument, or what the called function holds.

It allows a later comparison, but contains no text. A number, a bool or None stands directly; anything else is a digest
of 128 bits; `"?"` is a value that cannot be compared (a connection, a lock). Text is always digested, so it is never
mistaken for a digest, and a password is never recorded.

The digest covers `inputs_hash.canonical` of the value's tree. A plain str or bytes may be long, and is digested
directly after a `"` or a `b`, with which the canonical form of no other value starts.

All secrets count as equal, and known secret values are removed from everything before it is digested: a short secret
could be guessed from its digest.

The tree is that of the codec, but a dict with unsorted keys keeps their order. An object outside the codec's types is
`{"$object": [class, fields]}`, which is never read back, so it needs no annotation. The class is named without its
module, because moved code is the same code; the fields are those that the class compares by, and those of any other
class are what pickle would save.

The state of any other object of the program or of a package (a client, a model) is not compared: it may hold the time
of its start, and change with each call. Its class counts. So do functions, and the class of a value (if it only declares
fields, by their names in their order): a form may be `V`, `V.C`, `V?` or `V.C?`, where `V` is the digest of what can be
compared, `C` that of the code, in the order in which the value contains it, and `?` says that the state of an object is
left out. A value that the called function holds has a `~` before its form.

Code of Python or of a package has no fingerprint, so its name counts with its module, as a value.
"""

from __future__ import annotations

import contextlib
import copyreg
import enum
import functools
import math
import sys
from base64 import urlsafe_b64encode
from collections import OrderedDict, deque
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, Sized, ValuesView
from hashlib import sha256
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import attrs

from flowckpt.core.codec import Json, tags
from flowckpt.core.codec import encode as encode_leaf
from flowckpt.core.codec.annotations import is_dataclass, is_named_tuple
from flowckpt.core.dsl.checks import unyielded_argument_error
from flowckpt.core.dsl.step import Step
from flowckpt.core.identity import classes
from flowckpt.core.identity.fingerprint import has_only_fields, step_fingerprint
from flowckpt.core.identity.inputs_hash import canonical
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.identity.sources import find_literals, is_made_in_loop
from flowckpt.core.system import external
from flowckpt.core.system.declared import module_name
from flowckpt.core.system.external import is_pydantic
from flowckpt.core.system.functions import PLAIN, cached_per_function, functions_of, is_installed
from flowckpt.core.system.secret import MARK, Secret
from flowckpt.errors import EncodingError, StepNotYieldedError

UNKNOWN = "?"
"""Stands for a value that cannot be compared."""

HELD = "~"
"""The first character of the form of a value that the called function holds."""

MAX_DEPTH = 100
MAX_ITEMS = 1 << 21
"""How many items a value may have: even a short value can contain itself many times. 64 bytes of an array are one."""
LARGEST = 1 << 63
_CONTENTS = (int, float, str, bytes, list, dict, tuple, set, frozenset)

NONE = KnownSecrets()
"""The secrets of a call outside a run: only values wrapped as `Secret` are secret."""

tags.use_program_classes(classes)


def digest_value(value: Any, secrets: KnownSecrets = NONE) -> Json:
    """Return the recorded form of a value. It never raises, except for a step that was not yielded.

    Args:
        value: the value.
        secrets: the secrets of the run; secrets in the value are added.

    Raises:
        StepNotYieldedError: the value is a step, or contains one.
    """
    kind = type(value)
    if secrets.is_any and (kind is int or kind is float) and secrets.is_number(value):
        value = Secret(value)
        kind = Secret
    if kind is int:
        if -LARGEST <= value < LARGEST:
            return value
    elif value is None or kind is bool or (kind is float and math.isfinite(value)):
        return value
    rest = ""
    try:
        if kind is str:
            value = secrets.redact(value) if secrets.is_any else value
            digest = sha256(b'"')
            digest.update(value.encode("utf-8", "surrogatepass"))
        elif kind is bytes and not secrets.is_any:
            digest = sha256(b"b")
            digest.update(value)
        elif kind is bytes:
            digest = sha256(b"b")
            digest.update(secrets.redact(value.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape"))
        else:
            walk = ValueTree(secrets)
            tree = walk.of(value)
            if walk.has_state and not walk.codes and tree == {"$object": [kind.__qualname__]}:
                return UNKNOWN  # only the name of its class is known
            digest = sha256(canonical(secrets.redact_tree(tree) if secrets.is_any else tree))
            if walk.codes:
                codes = secrets.redact_tree(walk.codes) if secrets.is_any else walk.codes
                rest = f".{_short(sha256(canonical(codes)))}"
            rest += UNKNOWN * walk.has_state
    except StepNotYieldedError:
        raise
    except Exception:  # the value's own code failed; the step must still run
        return UNKNOWN
    return _short(digest) + rest


def _short(digest: Any) -> str:
    return urlsafe_b64encode(digest.digest()[:16])[:22].decode()


class IncomparableError(Exception):
    """A value has too little information to be compared."""


class ValueTree:
    """Builds the tree of one value: like `codec.encode`, but with objects as their fields.

    Args:
        secrets: the secrets of the run; secrets in the value are added.
        opens_objects: whether objects outside the codec's types are followed, and not refused.

    Attributes:
        codes: the fingerprints of the functions and classes in the value, in its order, and what functions hold of code.
        has_state: whether the value contains an object whose state is left out.
    """

    def __init__(self, secrets: KnownSecrets = NONE, *, opens_objects: bool = True) -> None:
        self.codes: list[Json] = []
        self.has_state = False
        self._opens_objects = opens_objects
        self._left = MAX_ITEMS
        self._open: dict[int, int] = {}
        self._numbers: dict[Any, int] = {}
        self._noted: set[type] = set()
        self._secrets = secrets

    def of(self, value: Any, depth: int = 0) -> Json:  # noqa: PLR0911 - one return for each kind of value
        """Return the tree of a value.

        Args:
            value: the value.
            depth: how deep in the whole value it lies.

        Raises:
            IncomparableError: the value has too much or too little information.
            EncodingError: it contains an object, and objects are not opened.
            StepNotYieldedError: it contains a step.
        """
        kind = type(value)
        if kind is bool or value is None or (kind is int and -LARGEST <= value < LARGEST):
            return value
        if kind is str and value.isascii():
            return value
        if kind is list:
            return self._all(value, depth)
        if kind is tuple:
            return {"$tuple": self._all(value, depth)}
        if kind is set or kind is frozenset:
            return {f"${kind.__name__}": self._all_sorted(value, depth)}
        if kind is dict:
            keys = self._all(value, depth)
            values = self._all(value.values(), depth)
            is_plain = all(type(key) is str and key[:1] != "$" for key in keys)
            pairs = [list(pair) for pair in zip(keys, values, strict=True)]
            if self._opens_objects and keys != sorted(keys, key=None if is_plain else canonical):
                return {"$object": ["dict", pairs]}  # the order counts: it may be that of the columns of a file
            return dict(pairs) if is_plain else {"$dict": pairs}
        if kind is Secret:
            if not value.is_absent and self._secrets is not NONE:
                self._secrets.learn(value)
            return dict(MARK)
        if kind is Step:
            if self._open:  # an object may keep steps for later
                raise IncomparableError
            raise unyielded_argument_error("", value)
        if kind is bytes and self._open:  # of an array, for example
            self._spend(len(value) >> 6)
            return {"$bytes": sha256(value).hexdigest()}
        return self._of_object(value, kind, depth)

    def _of_object(self, value: Any, kind: type, depth: int) -> Json:
        if self._opens_objects and isinstance(value, _CODE):
            return {"$object": [kind.__name__, *self._of_code(value, depth)]}
        fields = _fields(value, kind)
        if fields is not None and not (self._opens_objects and _compares_by_identity(kind)):
            self._note_class(kind, depth)
            return {"$object": [kind.__qualname__, {name: self._all([item], depth)[0] for name, item in fields}]}
        if fields is None:
            try:
                return encode_leaf(value)
            except EncodingError:
                if not self._opens_objects:
                    raise
        return self._of_other(value, kind, depth)

    def _of_code(self, value: Any, depth: int) -> list[Json]:
        """Return the name of a function, class or module, and the tree of the values that it holds.

        A function that holds anything is opened once: functions may hold each other.
        """
        self._note_code(value)
        if isinstance(value, ModuleType):
            return [module_name(value.__name__)]
        name = _with_library(value, value.__qualname__)
        for inlined in ("<listcomp>", "<setcomp>", "<dictcomp>"):  # functions of their own before Python 3.12
            name = name.replace(f"{inlined}.", "")
        if not (held := held_values(value)):
            return [name]
        if (number := self._numbers.get(value)) is not None:
            return [name, number]
        self._numbers[value] = len(self._numbers)
        self._open[id(value)] = len(self._open)
        try:
            codes = {variable: each for variable, each in held.items() if _is_only_code(each)}
            for variable, each in codes.items():
                tree = self._all([each], depth)
                self.codes.append([variable, *tree])
            return [name, *self._all([{variable: held[variable] for variable in held if variable not in codes}], depth)]
        finally:
            del self._open[id(value)]

    def _note_code(self, value: Any) -> None:
        if code := step_fingerprint(value):
            self.codes.append(code)

    def _note_class(self, kind: type, depth: int) -> None:
        """Note the code of the class of a value."""
        if self._opens_objects and (code := _code_of_class(kind)):
            self.codes.append(code)
        self._note_held(kind, depth)

    def _note_held(self, kind: type, depth: int) -> None:
        """Note what the class of a value holds."""
        if not self._opens_objects or kind in self._noted or not _is_one_of_several(kind):
            return
        self._noted.add(kind)
        if held_values(kind):
            self.codes.append(self._of_code(kind, depth))

    def _of_other(self, value: Any, kind: type, depth: int) -> Json:
        """Return the tree of an object that neither the codec nor its class describes.

        That of a value is made of what pickle would save: how to make it, its state, its items.
        """
        if kind.__module__.partition(".")[0] == "flowckpt":  # a plan has no output for an ephemeral step
            raise IncomparableError
        if not _is_value(value, kind, is_part=bool(self._open)):
            self._note_code(kind)
            self._note_held(kind, depth)
            self.has_state = True
            return {"$object": [kind.__qualname__]}
        # A step would exhaust an iterator.
        if hasattr(kind, "__next__") or getattr(value, "nbytes", 0) >> 6 > self._left:
            raise IncomparableError
        self._note_class(kind, depth)
        return {"$object": [kind.__qualname__, *self._inside(value, self._saved_parts(value, kind), depth)]}

    def _inside(self, value: Any, parts: Sequence[Any], depth: int) -> list[Json]:
        """Return the trees of the parts of an object that may contain itself, as a child may refer to its parent."""
        if (place := self._open.get(id(value))) is not None:
            return [len(self._open) - place]
        self._open[id(value)] = len(self._open)
        try:
            return self._all(parts, depth)
        finally:
            del self._open[id(value)]

    def _saved_parts(self, value: Any, kind: type) -> Sequence[Any]:
        if isinstance(value, KeysView | ValuesView | ItemsView):
            return [*value]
        if (stream := _arrow_stream(value, kind)) is not None:
            return [stream]
        if isinstance(value, BaseException):  # libraries for tracebacks change what pickle saves
            return [value.args, vars(value)]
        if isinstance(value, PurePath):  # each version of Python saves it in its own way
            return [str(value)]
        reduce = copyreg.dispatch_table.get(kind)
        saved: Any = reduce(value) if reduce else value.__reduce_ex__(4)
        if type(saved) is str:  # the name of the only object of its kind
            return [_with_library(value, saved)]
        _, args, *rest = saved
        state, items, pairs = (*rest, None, None, None)[:3]
        args = [each for each in args if each is not kind]
        if isinstance(value, set | frozenset):  # their order differs in each process
            args = [frozenset(each) if type(each) is list else each for each in args]
        pairs = [*map(list, pairs or ())] if issubclass(kind, OrderedDict) else dict(pairs or ())
        return [args, state, [*(items or ())], pairs]

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise IncomparableError

    def _all(self, values: Iterable[Any], depth: int) -> list[Json]:
        if depth >= MAX_DEPTH:
            raise IncomparableError
        if isinstance(values, Sized):
            self._spend(len(values))
        return [self.of(value, depth + 1) for value in values]

    def _all_sorted(self, values: Iterable[Any], depth: int) -> list[Json]:
        """Like `_all`, of values whose order differs in each process: that of the trees counts, for their codes too."""
        codes, numbers, noted, left = self.codes, self._numbers, self._noted, self._left
        self.codes, self._numbers, self._noted = [], {**numbers}, {*noted}
        trees = self._all(values, depth)
        if self.codes or len(self._numbers) > len(numbers):  # rarely, because it takes twice as long
            self._left = left
            found = list[tuple[bytes, bytes, Json, list[Json]]]()
            for value in values:
                self.codes, self._numbers, self._noted = [], {**numbers}, {*noted}
                (tree,) = self._all([value], depth)
                found.append((canonical(tree), canonical(self.codes), tree, self.codes))
            found.sort(key=lambda each: each[:2])
            codes += [code for *_, inner in found for code in inner]
            trees = [tree for _, _, tree, _ in found]
        else:
            trees.sort(key=canonical)
        self.codes, self._numbers, self._noted = codes, numbers, noted
        return trees


def _with_library(value: Any, name: str) -> str:
    """Return a name with the module of its object, if that is one of Python or of an installed package.

    Moved code of the project is the same code. Parts with an underscore do not count: where a library keeps what it
    exports differs between versions (`pathlib._local`).
    """
    home = getattr(value, "__module__", None)
    if type(home) is not str or home == "__main__":
        return name
    head, *rest = home.split(".")
    file = getattr(sys.modules.get(home), "__file__", None) or ""
    if not (is_installed(file) if file else head in sys.stdlib_module_names):
        return name
    return f"{'.'.join([head.lstrip('_'), *(each for each in rest if each[:1] != '_')])}:{name}"


_VALUES = frozenset({"numpy", "pandas", "polars", "pyarrow"})


def _is_value(value: Any, kind: Any, *, is_part: bool) -> bool:
    """Return whether an object outside the codec's types is compared: it is of a type of Python, an array or a data frame.

    One that compares by identity must also be unable to change, or be a part of another value.

    Args:
        value: the object.
        kind: its type.
        is_part: whether it is a part of a value of this kind.
    """
    top = kind.__module__.partition(".")[0]
    if isinstance(value, KeysView | ValuesView | ItemsView | functools.partial | BaseException) or (
        is_part and top in _VALUES
    ):
        return True
    is_known = top in sys.stdlib_module_names or top in _VALUES or isinstance(value, (*_CONTENTS, deque))
    if not is_known or top == "os":  # `os.environ` differs in each process
        return False
    return not _compares_by_identity(kind) or hasattr(kind, "__next__") or not _has_own_state(value, kind)


def _arrow_stream(value: Any, kind: type) -> bytes | None:
    """Return an array or a table of pyarrow in Arrow's own format, which does not depend on chunks; None of anything else."""
    arrow: Any = sys.modules.get("pyarrow") if kind.__module__.partition(".")[0] == "pyarrow" else None
    if arrow is None:
        return None
    if isinstance(value, arrow.Array):
        value = arrow.chunked_array([value])
    if isinstance(value, arrow.ChunkedArray):
        value = arrow.table({"": value})
    if isinstance(value, arrow.RecordBatch):
        value = arrow.Table.from_batches([value])
    if not isinstance(value, arrow.Table):
        return None
    stream = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(stream, value.schema) as writer:
        writer.write_table(value.combine_chunks())
    content: bytes = stream.getvalue().to_pybytes()
    return content


@cached_per_function
def _code_of_class(kind: type) -> str:
    """Return the identity of the code of a class: its fingerprint if it, or a base, defines more than fields.

    Of a class of nothing but fields, their order counts, but no default; of an enum, not even its other members. The
    source of any other class is unknown: an empty text.
    """
    code, names = step_fingerprint(kind), _field_names(kind)
    if not code or not has_only_fields(kind, names):
        return code
    return " ".join([kind.__qualname__, *(() if issubclass(kind, enum.Enum) else names)])


def _has_own_state(value: Any, kind: Any) -> bool:
    reduce = copyreg.dispatch_table.get(kind)
    saved: Any = reduce(value) if reduce else value.__reduce_ex__(4)
    return type(saved) is tuple and len(saved) > 2 and bool(saved[2])


def _compares_by_identity(kind: Any) -> bool:
    return kind.__eq__ is object.__eq__ and not issubclass(kind, enum.Enum)


def _fields(value: Any, kind: type) -> Iterator[tuple[str, Any]] | None:
    """Return the fields by which an object is compared; None if it is not compared by fields."""
    if issubclass(kind, enum.Enum):
        return iter([("name", value.name), ("value", value.value)])
    names = _field_names(kind)
    if is_named_tuple(kind):
        return zip(names, tuple.__iter__(value), strict=True)
    if is_pydantic(kind):
        extra = value.__pydantic_extra__ or {}
        return iter([*((name, value.__dict__[name]) for name in names), *((f"**{n}", extra[n]) for n in extra)])
    if attrs.has(kind):
        compared = [field.name for field in attrs.fields(kind) if field.eq]
        is_own = "__attrs_attrs__" in vars(kind)
    elif external.dataclasses.is_dataclass(kind):
        compared = [field.name for field in external.dataclasses.fields(kind) if field.compare]
        is_own = "__dataclass_fields__" in vars(kind)
    else:
        return None
    if isinstance(value, _CONTENTS) or not (is_own or getattr(value, "__dict__", {}).keys() <= {*names}):
        return None  # a plain subclass, or a subclass of list: it contains more than its fields
    return ((name, getattr(value, name)) for name in compared)


@cached_per_function
def _field_names(kind: Any) -> list[str]:
    """Return the names of the fields of a data class, or of the members of an enum."""
    if issubclass(kind, enum.Enum):
        return [*kind.__members__]
    if is_named_tuple(kind):
        return [*kind._fields]
    if is_pydantic(kind):
        return [*kind.model_fields]
    if attrs.has(kind):
        return [field.name for field in attrs.fields(kind)]
    return [field.name for field in external.dataclasses.fields(kind)] if is_dataclass(kind) else []


# --- what a function holds ---------------------------------------------------------------------------------------------

_CODE = (FunctionType, MethodType, type, ModuleType, type(functools.cache(print)))
CONTAINERS = (list, dict, set, bytearray, deque)
"""The containers that can be changed in place."""
_READ_ONLY = {*dir(tuple), *dir(frozenset), *dir(bytes), *dir(MappingProxyType)}
"""The methods of containers that change nothing: those that their immutable counterparts have, too."""


def held_values(function: Any) -> Mapping[str, Any]:
    """Return what a function holds besides its code: its object, or the variables of its closure; usually nothing.

    The functions and classes in its closure are among them: its code does not say which variable holds which. Of an object
    that contains nothing, its class is returned.
    """
    held: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # the object's own code failed
        while type(function) is not FunctionType and not isinstance(function, type | ModuleType):
            if issubclass(type(function), functools.partial):
                function = function.func
            elif type(function) is MethodType:
                if _is_own(owner := function.__self__, function):
                    held[_name_of_self(function.__func__)] = owner
                function = function.__func__
            elif hasattr(function, "__wrapped__"):  # such as `lru_cache`
                function = function.__wrapped__
            else:
                if _is_own(owner := getattr(function, "__self__", function), function):
                    held["self"] = owner
                break
        for name, value in _held_by_class(function) if isinstance(function, type) else _closure(function):
            if not _is_part(name, value, function):
                held[free_name(name, held)] = value if isinstance(value, _CODE) or _has_content(value) else type(value)
        return held
    return {}


def _is_own(owner: Any, function: Any) -> bool:
    """Return whether the object of a method tells more than the name of the method."""
    if isinstance(owner, type):  # a method of the class that defines it, or an inherited one
        return bool(function.__qualname__.rpartition(".")[0] != owner.__qualname__ or held_values(owner))
    return not isinstance(owner, ModuleType) and _has_content(owner)


def _is_part(name: str, value: Any, function: Any) -> bool:
    """Return whether a variable of a closure is part of the function's own code: itself, its class, what it wraps."""
    if name == "__class__" or value is function:
        return True
    return type(value) is FunctionType and value is vars(function).get("__wrapped__") and not held_values(value)


def _name_of_self(function: Any) -> str:
    code = getattr(function, "__code__", None)
    return str(code.co_varnames[0]) if code is not None and code.co_argcount else "self"


def _closure(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a closure, and the defaults of a nested function, which are values of the outer one.

    Of a function that a loop at the top level makes, the simple defaults are yielded, too.
    """
    if type(function) is FunctionType:
        code = function.__code__
        is_nested = "<locals>" in code.co_qualname
        if is_nested or _is_one_of_several(function):
            defaults = function.__defaults__ or ()
            names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
            for name, value in (*zip(names, defaults, strict=True), *(function.__kwdefaults__ or {}).items()):
                if is_nested or _is_simple(value):
                    yield name, value
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # not filled yet
                yield name, cell.cell_contents


def _held_by_class(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield what a class made by a function, or one of several that a loop has made, has of the values around it.

    These are the simple values and the code among its attributes, and what its methods hold. The defaults of fields are in
    the objects.
    """
    if not _is_one_of_several(kind):
        return
    name = kind.__qualname__
    skipped = {*_field_names(kind), *_literals_of(kind)}  # literals may be counters, and the text has them
    hidden = "_" if issubclass(kind, enum.Enum | tuple) else "__"  # what Python adds itself
    for attribute, member in vars(kind).items():
        if attribute.startswith(hidden) or attribute in skipped:
            continue
        functions = functions_of(member)
        for function in functions:
            if function.__code__.co_qualname.startswith(f"{name}."):
                yield from ((each, value) for each, value in _closure(function) if value is not kind)
            else:
                yield attribute, function
        if not functions and _is_simple(member):
            yield attribute, member


def _is_simple(value: Any) -> bool:
    """Return whether no step can change a value in place: a number, a text, or code."""
    return type(value) in PLAIN or isinstance(value, (*_CODE, BuiltinFunctionType))


_literals_of = cached_per_function(find_literals)


@cached_per_function
def _is_one_of_several(part: Any) -> bool:
    """Return whether a function or class may be one of several that the same text makes; a method is not asked."""
    name = part.__qualname__ if isinstance(part, type) else part.__code__.co_qualname
    return "<locals>" in name or (("." not in name or "<" in name) and is_made_in_loop(part))


def _is_only_code(value: Any, seen: set[Any] | None = None) -> bool:
    """Return whether a value is nothing but code, also in what it holds."""
    seen = set() if seen is None else seen
    if type(value) is FunctionType:  # each is opened once: they may hold each other
        if value in seen:
            return True
        seen.add(value)
        return all(_is_only_code(held, seen) for _, held in _closure(value))
    if type(value) is BuiltinFunctionType:
        return _is_only_code(value.__self__, seen)
    return isinstance(value, type | ModuleType) or not _has_content(value)


def _has_content(value: Any) -> bool:
    """Return whether an object has anything that distinguishes it from others of its class."""
    kind: Any = type(value)
    is_plain = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
    if value is None or not is_plain or kind in copyreg.dispatch_table or isinstance(value, _CONTENTS):
        return True
    return value.__getstate__() is not None


def digest_held(function: Any, value: Any, secrets: KnownSecrets) -> Json:
    """Return the recorded form of a value that a function holds; see `held_values`.

    Args:
        function: the function.
        value: the value.
        secrets: the secrets of the run; secrets in the value are added.
    """
    if type(value) is Step or changes_container(function):
        return UNKNOWN
    form = digest_value(value, secrets)
    return form if form == UNKNOWN else f"{HELD}{form}"


def is_held(form: Json) -> bool:
    """Return whether a recorded form is that of a value that the called function holds."""
    return type(form) is str and form[:1] == HELD


def is_incomplete(form: Json) -> bool:
    """Return whether a recorded form is that of a value that cannot be compared, or not as a whole."""
    return type(form) is str and form[-1:] == UNKNOWN


def value_part(form: Json) -> Json:
    """Return the part of a recorded form that is not code; what the function holds counts as code."""
    if type(form) is not str or form == UNKNOWN:
        return form
    return UNKNOWN if form[0] == HELD else form.rstrip(UNKNOWN).partition(".")[0]


def code_part(form: Json, *, with_held_code: bool = True) -> str:
    """Return the part of a recorded form that counts as code; empty if there is none.

    Of what the function holds, that is the value, too.

    Args:
        form: the recorded form.
        with_held_code: whether the code of what the function holds is included, as it is in the function's fingerprint.
    """
    if type(form) is not str:
        return ""
    known = form.rstrip(UNKNOWN)
    value, _, code = known.partition(".")
    if value[:1] == HELD:
        return known if with_held_code else value
    return code


def value_parts(arguments: Mapping[str, Json]) -> dict[str, Json]:
    """Return the parts of recorded arguments that are not code, for a key that is the same in each try and process."""
    return {name: value_part(form) for name, form in arguments.items()}


def changes_container(function: Any) -> bool:
    """Return whether a function is a method such as `list.append`, called for its effect on its object."""
    return (
        type(function) is BuiltinFunctionType
        and isinstance(function.__self__, CONTAINERS)
        and function.__name__ not in _READ_ONLY
    )


def free_name(name: str, named: Mapping[str, Any]) -> str:
    """Return a name, with asterisks before it if the mapping already has it."""
    while name in named:
        name = f"**{name}"
    return name
