"""The fingerprint of code: a digest of its syntax tree, in which comments, formatting and docstrings do not count.

The fingerprint of a workflow covers its own tree. That of a step also covers the top-level definition that contains its
function, all definitions of the project that this one names, and those that they name in turn. Of a nested function only
its own definition counts, not the one around it, which is often the workflow; what it holds is compared as values. It is
computed from the source alone (`flowckpt.core.identity.sources` says which belongs to a project), never from values, so
the same files have the same fingerprint in every process and Python version.

- One name may have several definitions (`if`/`else`, `try`/`except`, `TABLE = {}` and then `TABLE["a"] = 1`): all
  count, in their order, with their guards: the conditions of the `if`s around them, and what a `try` tries before them.
  A statement that may change the value is one of them, also in a module that imports the name from another one of the
  project.
- If a statement reads a value that a later one changes, the number of the earlier ones counts.
- Which definition a used name stands for counts where the name does not tell: if the definition has another name
  (`from x import f as g`), or if definitions of one name in several modules differ. Names of modules do not count.
- A name that is local to a scope (a parameter, a local variable) is not the module's. In doubt, the definition counts:
  a false alarm can be overruled, a missed change cannot.
- Definitions in other modules of the project count like those in the same module: through `from x import f`, `x.f`,
  relative imports, aliases, `from x import *`, imports inside functions, and packages that re-export names. A module
  that is used as a value counts as a whole.
- The standard library, installed packages and modules without source count only by the names that the code uses for
  them. So no upgrade invalidates a run; `packages` lists the ones that the code uses.
- Imports are resolved from the source, so a module that a function imports counts before the function runs.
- Wrappers of a function, and functions of the project in its closure, are code of the step, too.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import sys
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import attrs

from flowckpt.core.identity import syntax
from flowckpt.core.identity.sources import (
    CELLS,
    CHANGED,
    GUARDED_STARS,
    OF_PROCESS,
    Source,
    find_source,
    is_outdated,
    locate_part,
    project_root,
)
from flowckpt.core.system.functions import cached_per_function, owner_class, parts_of, per_pair

FORM = "ast:v1:"
STEP_FORM = "2:"
LIBRARY = "import "
"""Stands before the name of a library's module or function that was reached, in the place of a file."""


_FEW = 16
"""A name with more definitions stands for a whole module."""


IS_OWN = "?"
"""Stands after the name of an import that has several modules: which of them are the project's."""


class _Use(NamedTuple):
    """A name in a definition, and a definition that it stands for; each definition has its file and its name."""

    user: tuple[str, str]
    dotted: str
    target: tuple[str, str]
    is_known: bool
    """Whether the target had been reached before."""


class Code(NamedTuple):
    """The identity of a function's code.

    Attributes:
        fingerprint: the fingerprint; empty if the source is not available.
        packages: the top-level modules outside the project whose names the code uses.
    """

    fingerprint: str = ""
    packages: frozenset[str] = frozenset()


def fingerprint(function: Callable[..., Any]) -> str:
    """Return the fingerprint of a function's own text; empty if its source is not available (a REPL, a builtin).

    Args:
        function: the function; decorators that set `__wrapped__` are unwrapped. For a nested function, the whole outer
            definition counts.
    """
    try:
        module, names = locate_part(inspect.unwrap(function))
        texts = [module.read_definition(name)[0] for name in sorted(names)] if module else []
    except Exception:  # not a function, or the source is not what was imported
        return ""
    return FORM + sha256("\n".join(texts).encode()).hexdigest() if texts else ""


def step_fingerprint(function: Callable[..., Any]) -> str:
    """Return the fingerprint of a step's function: `2:` and 22 characters; empty if its source is not available.

    Args:
        function: a function, method, class, partial or callable object, or a module that is a value.
    """
    return code_of(function).fingerprint


def code_of(function: Callable[..., Any]) -> Code:
    """Return the identity of the code of a step's function, computed once for each function.

    Args:
        function: a function, method, class, partial or callable object.
    """
    try:
        while isinstance(function, functools.partial):
            function = function.func
        if isinstance(function, FunctionType | type):
            return _code_of_function(function)
        if isinstance(function, MethodType):  # a new object each time, so cached by its parts
            return _code_of_pair(function.__func__, owner_class(function))
        call = getattr(type(function), "__call__", None)
        if type(call) is not FunctionType or getattr(function, "__wrapped__", None) is not None:
            return _code_of_function(function)
        return _code_of_pair(type(function), call)  # all objects of a class have the same code
    except Exception:  # a user's object that cannot be inspected
        return Code()


def _compute_code(*functions: Any) -> Code:
    walk = _Walk()
    try:
        has_outdated = False
        for module in functions:
            if isinstance(module, ModuleType):
                walk.enter_module(module)
        for part in parts_of(*functions):
            source, names = _locate_own(part)
            walk.enter(source, names)
            has_outdated = has_outdated or is_outdated(part, source)
        texts = walk.texts()
        if texts and has_outdated:
            texts.append(OF_PROCESS)
    except Exception:  # not the source that was imported, or a tree too deep
        return Code()
    if not texts:
        return Code()
    digest = sha256("\n".join(texts).encode()).digest()[:16]
    return Code(STEP_FORM + urlsafe_b64encode(digest).decode().rstrip("="), frozenset(walk.packages))


_code_of_function = cached_per_function(_compute_code)
_code_of_pair = per_pair(_compute_code)


@attrs.define(eq=False, repr=False)
class _Walk:
    """Follows the names of definitions through the modules of a project.

    Attributes:
        packages: the top-level modules outside the project that were reached.
    """

    packages: set[str] = attrs.field(factory=set)
    _root: str = ""
    _entered: dict[Source, set[str]] = attrs.field(factory=dict)
    _reached: dict[tuple[str, str], str] = attrs.field(factory=dict)
    _resolved: dict[tuple[str, ...], list[tuple[Source, str]]] = attrs.field(factory=dict)
    _uses: list[_Use] = attrs.field(factory=list)

    def enter(self, source: Source | None, names: tuple[str, ...]) -> None:
        """Start with definitions of a module."""
        if source is None or not names:
            return
        self._root = self._root or project_root(source.file)
        self._entered.setdefault(source, set()).update(names)

    def enter_module(self, module: ModuleType) -> None:
        """Start with all definitions of a module, if it belongs to a project."""
        file = module.__file__ or ""  # a namespace package has None
        source = find_source(module.__name__, root := project_root(file))
        if source is not None:
            self._root = self._root or root
            for other, name in self._resolve_all(source):
                self.enter(other, (name,))

    def texts(self) -> list[str]:
        """Return the texts of all reached definitions, by name; those of one name in the order reached."""
        entered = [(source, sorted(names, key=_by_line)) for source, names in self._entered.items()]
        waiting = [(source, name) for source, names in reversed(entered) for name in reversed(names)]
        known = {(source.file, name) for source, name in waiting}
        while waiting:
            source, name = waiting.pop()
            if (source.file, name) in self._reached:
                continue
            text, used, imports = source.read_definition(name)
            self._reached[source.file, name] = text
            uses = [(dotted, self.resolve(source, *_split(dotted))) for dotted in used]
            uses += [
                (each.attribute, self._resolve_import(each.attribute or each.module, each, [])) for each in imports
            ]
            found: list[tuple[Source, str]] = []
            for dotted, targets in uses:
                is_module = len(targets) > _FEW  # as a whole: its first definition stands for it
                for target, defined in targets:
                    is_known = (key := (target.file, defined)) in known
                    if (is_known or defined != dotted) and not (is_module and (target, defined) != targets[0]):
                        self._uses.append(_Use((source.file, name), dotted, key, is_known))
                    if not is_known:
                        known.add(key)
                        found.append((target, defined))
            waiting += reversed(found)
        by_name: dict[str, list[str]] = {}
        for (_, name), text in self._reached.items():
            by_name.setdefault(_without_line(name), []).append(text)
        is_ordered = not any(file == CELLS for file, _ in self._reached)
        if not is_ordered:  # versions of a name, from cells that may run in any order
            by_name = {name: sorted({*found}) for name, found in by_name.items()}
        listed = [f"{name}: {text}" for name in sorted(by_name) for text in by_name[name]]
        listed += sorted({*self._list_uses(is_ordered=is_ordered)})
        return [*(",".join(map(_without_line, names)) for _, names in entered), *listed] if listed else []

    def _list_uses(self, *, is_ordered: bool) -> Iterator[str]:
        """Yield which definitions the uses of names stand for, where that does not follow from the names.

        Of several definitions of one name, the first use that leads to another definition stands for the next one.

        Args:
            is_ordered: whether the definitions of one name have an order, which their numbers tell.
        """
        numbers: dict[str, dict[str, int]] = {}
        for (file, name), text in self._reached.items():
            if not file.startswith(LIBRARY):
                known = numbers.setdefault(_without_line(name), {})
                known.setdefault(text, len(known))
        for user, dotted, target, is_known in self._uses:
            names = _without_line(user[1]), _without_line(target[1])
            parts = [_without_line(each) for each in dotted.split(".")]
            is_renamed = bool(dotted) and names[1].lstrip(CHANGED) not in parts
            if is_renamed or (is_ordered and is_known and len(numbers[names[1]]) > 1):
                of = [numbers[name][self._reached[key]] for name, key in zip(names, (user, target), strict=True)]
                yield f"{names}: {'.'.join(parts)} {of if is_ordered else ''}"

    def resolve(self, source: Source, head: str, rest: list[str]) -> list[tuple[Source, str]]:
        """Return the definitions that a name and its attributes refer to in a module."""
        is_bound = source.has(head)
        if not (is_bound or source.stars):
            return self._find_in_cells(source, head)
        if (known := self._resolved.get(key := (source.file, head, *rest))) is not None:
            return known
        self._resolved[key] = found = list[tuple[Source, str]]()  # empty until then: modules may import each other
        if head in source.definitions:
            found.append((source, head))
        if head in source.imports:
            found += self._resolve_imports(source, head, rest)
        if source.stars:
            found += self._resolve_stars(source, head, rest)
        if not (found or is_bound):
            found += self._find_in_cells(source, head)
        return found

    def _resolve_imports(self, source: Source, head: str, rest: list[str]) -> list[tuple[Source, str]]:
        targets, changed = source.imports[head], CHANGED + head
        found, is_own = list[tuple[Source, str]](), list[bool]()
        if len(targets) > 1 or changed in source.definitions:
            is_own = [bool(each.module) and find_source(each.module, self._root) is not None for each in targets]
        if changed in source.definitions and (any(is_own) or source.is_guarded(changed)):
            found.append((source, changed))
        if is_own != sorted(is_own):  # libraries count by their names, which tell no order
            self._reached[source.file, head + IS_OWN] = ", ".join(map(str, is_own))
        for target in targets:
            found += self._resolve_import(head, target, rest)
        return found

    def _resolve_import(self, head: str, target: syntax.Import, rest: list[str]) -> list[tuple[Source, str]]:
        source = find_source(target.module, self._root) if target.module else None
        if source is None:
            top = target.module.partition(".")[0]
            if top not in sys.stdlib_module_names and top not in ("", "flowckpt"):
                self.packages.add(top)
            self._reached[f"{LIBRARY}{target}", head] = str(target)
            return []
        name, path = target.module, [target.attribute, *rest] if target.attribute else rest
        while path:
            # `from . import rules` in a package binds its own module.
            if source.has(path[0]) and syntax.Import(name, path[0]) not in source.imports.get(path[0], ()):
                return self.resolve(source, path[0], path[1:])
            below = find_source(f"{name}.{path[0]}", self._root)
            if below is None:
                found = self._resolve_stars(source, path[0], path[1:]) or self._find_in_cells(source, path[0])
                return found or self._resolve_all(source)  # an attribute that is not visible in the source
            source, name, path = below, f"{name}.{path[0]}", path[1:]
        return self._resolve_all(source)

    def _find_in_cells(self, source: Source, head: str) -> list[tuple[Source, str]]:
        """Return the definitions, in other cells of a notebook, of a name that a source does not bind."""
        found: list[tuple[Source, str]] = []
        if head in source.scope and not Path(source.file).is_file():
            value = source.scope[head]
            for part in parts_of(value) if isinstance(value, FunctionType | type) else ():
                other, names = locate_part(part)
                found += [(other, name) for name in names if other is not None and other is not source]
        return found

    def _resolve_stars(self, source: Source, head: str, rest: list[str]) -> list[tuple[Source, str]]:
        """Resolve a name from the star imports of a module, without those before a statement that certainly binds it."""
        found: list[tuple[Source, str]] = []
        bound_at = max((place for place, is_certain in source.places.get(head, ()) if is_certain), default=())
        for star, place in source.stars.items():
            other = find_source(star, self._root)
            if (
                other is not None
                and other is not source
                and (place > bound_at or not source.has(head))
                and (other.has(head) or other.stars)
            ):
                found += self.resolve(other, head, rest)
        return [*found, (source, GUARDED_STARS)] if found and GUARDED_STARS in source.definitions else found

    def _resolve_all(self, source: Source) -> list[tuple[Source, str]]:
        if (known := self._resolved.get(key := (source.file,))) is not None:
            return known
        self._resolved[key] = found = [(source, name) for name in sorted(source.definitions) if name[:1] != CHANGED]
        for name in sorted(source.imports):
            found += self.resolve(source, name, [])
        return found


def _split(dotted: str) -> tuple[str, list[str]]:
    head, *rest = dotted.split(".")
    return head, rest


def _by_line(name: str) -> tuple[str, list[int]]:
    """Return a key that sorts nested functions of one name by their lines, as numbers."""
    base, *place = name.split(" ")
    return base, [*map(int, place)]


def _without_line(name: str) -> str:
    """Return the name of a definition without the line of a nested function or the number of a version in a notebook."""
    return name.partition(" ")[0].partition("@")[0]


def _locate_own(part: FunctionType | type) -> tuple[Source | None, tuple[str, ...]]:
    """Return the module and the names of a function or class, of a nested function without the definition around it.

    A lambda at the top level, or one of several functions of a name, has its own name beside that of its definition.
    """
    source, names = locate_part(part)
    if source is not None and isinstance(part, FunctionType):
        with contextlib.suppress(LookupError):  # otherwise the definition around it counts
            if "<locals>" in part.__code__.co_qualname:
                names = (source.note_nested(part.__code__),)
            elif part.__code__.co_name == "<lambda>" or source.has_several(names):
                names = (*names, source.note_nested(part.__code__))
    return source, names


def has_only_fields(kind: type, fields: Iterable[str]) -> bool:
    """Return whether a class and its bases only declare fields, as far as they are source of the project.

    Args:
        kind: the class.
        fields: the names of its fields.
    """
    for each in kind.__mro__:
        source, names = locate_part(each)
        if source is None:
            continue
        statements = [nodes[-1] for name in names for nodes in source.definitions[name]]
        if not all(syntax.is_only_fields(statement, each.__name__, {*fields}) for statement in statements):
            return False
        walk = _Walk()
        walk.enter(source, names)
        if any(_names_metadata(walk, source, syntax.find_annotations(found, each.__name__)) for found in statements):
            return False
    return True


def _names_metadata(walk: _Walk, source: Source, annotations: list[ast.AST]) -> bool:
    """Return whether `Annotated` is in annotations, or in what the project assigns to a name of them."""
    waiting, seen = [(source, each) for each in annotations], set[int]()
    while waiting:
        source, node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        for dotted in source.find_used_names((node,))[0]:
            if dotted.rpartition(".")[2] == "Annotated":
                return True
            for other, name in walk.resolve(source, *_split(dotted)):
                values = (getattr(nodes[-1], "value", None) for nodes in other.definitions[name])
                waiting += [(other, value) for value in values if value is not None]
    return False
