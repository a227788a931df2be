"""The sources of a project's modules, and of the cells of a notebook: what each of their names is defined by.

A source is read once for each import of its module, and belongs to the code that runs: after an edit, the new text does
not count for what was imported before. What a shell has loaded again (`%autoreload`, `%run`), or `importlib.reload`, has
the new text as far as the functions and values in memory are those of the text. Where that cannot be known, the text of a
definition begins with `OF_PROCESS`, and is the same only within this process.

- The project is the source files below its root that are not installed. The root is the nearest directory upwards that
  holds `.git`, `.hg`, `pyproject.toml`, `setup.py` or `setup.cfg`; without one, the directory that holds the top
  package of the file. Modules that have not been imported are known by their files.
- The cells of a notebook, or the inputs of an `ipython` terminal, are one source, but of a name that several of them bind
  only the latest definition counts: `_Notebook`.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

import attrs

from flowckpt.core.identity import syntax
from flowckpt.core.system.functions import (
    PLAIN,
    PROCESS_NAME,
    find_module,
    forget_functions,
    is_code,
    is_edited,
    is_installed,
    is_reloaded,
    methods_of,
    name_of,
    parts_of,
    plain_values,
    scope_of,
    state_of,
    status_of,
)

CELLS = "<cells>"
"""Stands for the file of a notebook."""
CHANGED = "="
"""Stands before the name of an import in the definitions of a module: the statements that change the imported value, and
the guards of the import.
"""
GUARDED_STARS = "=*"
"""The definition that holds the guards of the imports with `*`."""
OF_PROCESS = f"loaded by {PROCESS_NAME}: "
"""Stands before the text of code that may not be what runs: such code is the same only within this process."""
Place: TypeAlias = tuple[int, ...]
"""A line and a column; empty for cells, which may run in any order."""
_MOST_MODULES = 4096
_MARKS = (".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg")
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_OWN = str(Path(__file__).resolve().parents[2])


@attrs.frozen(eq=False, repr=False)
class Source:
    """The top-level definitions and imports of one module, by name, each with its guards: see `syntax.top_statements`.

    Attributes:
        file: the file.
        scope: the namespace of the module.
        spec: the `__spec__` of the module, which differs after a reload.
        definitions: the statements that define a name, or change its value.
        imports: the targets of imports that bind a name.
        stars: the modules imported with `*`, each with its place.
        places: the places of the statements that bind or change a name, and whether they certainly bind it; empty for cells.
        modules: the full names of the modules that its import imports, possibly with attributes among them.
        is_edited: whether the file was written after the import, so that this is not the source of the code that runs.
        extended: the names whose values a function extends, if the module calls it: what it decorates is a part of them,
            but does not depend on them.
        text: the text of the file.
        status: the time of its last change and its size.
        states: the states of the module's values under a shell, which may load the file into the same namespace again.
    """

    file: str
    scope: dict[str, Any]
    spec: object
    definitions: dict[str, list[tuple[ast.AST, ...]]]
    imports: Mapping[str, list[syntax.Import]] = attrs.field(factory=dict)
    stars: Mapping[str, Place] = attrs.field(factory=dict)
    places: Mapping[str, list[tuple[Place, bool]]] = attrs.field(factory=dict)
    modules: frozenset[str] = frozenset()
    is_edited: bool = False
    extended: Mapping[str, set[str]] = attrs.field(factory=dict)
    text: str = ""
    status: tuple[int, int] = (0, 0)
    states: Mapping[str, Any] = attrs.field(factory=dict)
    _read_definitions: dict[str, tuple[str, tuple[str, ...], tuple[syntax.Import, ...]]] = attrs.field(factory=dict)
    _found: dict[tuple[int, str], tuple[str, ...]] = attrs.field(factory=dict)

    def first_line(self, code: CodeType) -> int:
        """Return the first line of a function, decorators included."""
        return code.co_firstlineno

    def names_at(self, line: int, name: str) -> tuple[str, ...]:
        """Return the top-level names whose definition contains a function, by the function's first line, decorators included.

        The answer is cached: a nested function is a new object at each call of the outer one.

        Raises:
            LookupError: no definition contains it.
        """
        if (known := self._found.get((line, name))) is not None:
            return known
        found: dict[str, str] = {}
        for top, definitions in self.definitions.items():
            base = top.partition("@")[0]  # of the versions of one name, the latest
            for *_, statement in definitions:
                if getattr(statement, "name", base) != base:  # it is only registered there
                    continue
                if _first_line(statement) <= line <= statement.end_lineno and any(  # type: ignore[attr-defined]
                    _is_function_at(node, line, name) for node in ast.walk(statement)
                ):
                    found[base] = top
        if not found:
            raise LookupError(f"no {name} at line {line}: the file is not what was imported")
        self._found[line, name] = names = tuple(found.values())
        return names

    def note_nested(self, code: CodeType) -> str:
        """Return a name for a nested function, by its first line, under which `read_definition` finds it.

        Of several lambdas of one line, the columns in the code tell which one it is. Without them (`-X no_debug_ranges`),
        the lambdas count together.
        """
        line, name = self.first_line(code), code.co_name
        key = f"{name} {line}"
        if key not in self.definitions:
            tops = {id(each[-1]): each[-1] for top in self.names_at(line, name) for each in self.definitions[top]}
            found = [node for top in tops.values() for node in ast.walk(top) if _is_function_at(node, line, name)]
            self.definitions[key] = [(node,) for node in found]
        lambdas = [node for (node,) in self.definitions[key] if isinstance(node, ast.Lambda)]
        if len(lambdas) > 1 and (node := syntax.find_lambda(lambdas, code, line - code.co_firstlineno)) is not None:
            key = f"{key} {node.col_offset}"
            self.definitions[key] = [(node,)]
        return key

    def has(self, name: str) -> bool:
        """Return whether the module binds a name at the top level, by a definition or an import."""
        return name in self.definitions or name in self.imports

    def has_several(self, names: Iterable[str]) -> bool:
        """Return whether one of the names has several definitions of functions."""
        found = (
            [nodes for nodes in self.definitions.get(name, ()) if isinstance(nodes[-1], syntax.FUNCTIONS)]
            for name in names
        )
        return any(len(each) > 1 for each in found)

    def is_loop(self, names: Iterable[str]) -> bool:
        """Return whether a loop binds one of the names."""
        found = ((name, nodes[-1]) for name in names for nodes in self.definitions.get(name, ()))
        loops = ((name, each) for name, each in found if isinstance(each, ast.For | ast.AsyncFor | ast.While))
        return any(name in syntax.find_bound_names([each])[0] for name, each in loops)

    def has_comprehension(self, names: Iterable[str]) -> bool:
        """Return whether the definition of one of the names contains a comprehension."""
        found = (node for name in names for nodes in self.definitions.get(name, ()) for node in ast.walk(nodes[-1]))
        return any(isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) for node in found)

    def is_guarded(self, name: str) -> bool:
        """Return whether an import among the definitions of a name has guards."""
        return any(_is_import(nodes) and nodes[1:] for nodes in self.definitions[name])

    def find_used_names(self, nodes: tuple[ast.AST, ...]) -> tuple[set[str], set[syntax.Import]]:
        """Return the names that a definition uses and its guards read, and its own imports; see `syntax.find_used_names`."""
        used, imports = syntax.find_used_names(nodes[-1:], self.scope)
        if guards := nodes[:-1]:
            used |= syntax.find_used_names(guards, self.scope, is_run=True)[0]
        return used, imports

    def read_definition(self, name: str) -> tuple[str, tuple[str, ...], tuple[syntax.Import, ...]]:
        """Return the text of the definitions of a name, the dotted names that they use, and their imports."""
        known = self._read_definitions.get(name)
        if known is None:
            used, inner = self._find_used(name)
            text = "; ".join(syntax.format_tree([*nodes]) for nodes in self.definitions[name])
            if self.is_edited or any(map(self._holds_outdated, _heads(used))):
                text = OF_PROCESS + text
            text = "; order: ".join([text, *self._describe_order(name)])
            known = self._read_definitions[name] = text, tuple(sorted(used)), tuple(sorted(inner))
        return known

    def _find_used(self, name: str) -> tuple[set[str], set[syntax.Import]]:
        used, inner, extended = set[str](), set[syntax.Import](), self.extended.get(name, ())
        for nodes in self.definitions[name]:
            names, imports = self.find_used_names(nodes)
            used |= {each for each in names if each.partition(".")[0] not in extended}
            inner |= imports
        return used, inner

    def _describe_order(self, name: str) -> list[str]:
        """Return which values the definitions of a name read before later statements change them; usually none.

        Each has the number of the statements before. What a called function of the module reads is read, too.
        """
        found = list[str]()
        if not self.places or " " in name:
            return found
        last = max(place for places in self.places.values() for place, _ in places[1:] or places)
        for number, nodes in enumerate(self.definitions[name]):
            place = place_of(nodes[-1])
            read = self._find_read_names(nodes) & self.places.keys() if place < last else set[str]()
            for each in sorted(read - {name.removeprefix(CHANGED)}):
                places = [at for at, _ in self.places[each]]
                before = sum(at < place for at in places)
                if before and max(places) > place and self._is_own(each):
                    found.append(f"{number} {each} {before}")
        return found

    def _find_read_names(self, nodes: tuple[ast.AST, ...]) -> set[str]:
        """Return the names whose values a statement may read when it runs, itself or in a function or class that it calls."""
        found = _heads(syntax.find_used_names(nodes, self.scope, is_run=True)[0])
        waiting, called = [*(found & syntax.find_called_names(nodes))], set[str]()
        while waiting:
            name = waiting.pop()
            if name not in called and any(syntax.is_definition(each[-1]) for each in self.definitions.get(name, ())):
                called.add(name)
                known = self._read_definitions.get(name)
                waiting += (used := _heads(known[1] if known is not None else self._find_used(name)[0]))
                found |= used
        return found

    def _is_own(self, name: str) -> bool:
        """Return whether a name belongs to the project, and not to a library."""
        root = project_root(self.file)
        targets = [each.module for each in self.imports.get(name, ()) if each.module]
        return name in self.definitions or any(find_source(each, root) for each in targets)

    def forget_texts(self) -> None:
        """Read the definitions again when they are needed."""
        self._read_definitions.clear()

    def is_known_at(self, code: CodeType) -> bool:
        """Return whether `names_at` has found a function on its line."""
        return (code.co_firstlineno, code.co_name) in self._found

    def _holds_outdated(self, name: str) -> bool:
        """Return whether the value of an imported name is not that of its module's text, because it is from before a reload."""
        if name not in self.scope or name in self.definitions:
            return False
        held: Any = self.scope[name]
        if type(held) is FunctionType and (held.__closure__ or vars(held)):  # a decorator has wrapped it
            return any(map(is_outdated, parts_of(held)))
        if is_code(held):
            return is_outdated(held)
        if type(held) not in PLAIN:
            return False
        targets = [*self.imports.get(name, ()), *(syntax.Import(star, name) for star in self.stars)]
        scopes = [(scope_of(each.module), each.attribute) for each in targets]
        return any(
            is_reloaded(scope) and state_of(scope[attribute]) != state_of(held)
            for scope, attribute in scopes
            if attribute in scope
        )

    def find_changed_names(self, other: Source) -> list[str]:
        """Return the names that another text of the module defines differently."""
        names = {name for source in (self, other) for name in (*source.definitions, *source.imports) if " " not in name}
        return [name for name in names - {GUARDED_STARS} if self._text_of(name) != other._text_of(name)]

    def _text_of(self, name: str) -> tuple[str, Any]:
        return syntax.format_tree([[*nodes] for nodes in self.definitions.get(name, ())]), self.imports.get(name)


_SOURCES: dict[str, Source] = {}
_NAMESPACE = Source("", {}, None, {})


def source_of(file: str, scope: dict[str, Any]) -> Source:
    """Return the source of a module, read once for each import.

    The namespace and the spec distinguish imports: after an edit, the new text must not count for code imported before.
    """
    known, spec = _SOURCES.get(file), scope.get("__spec__")
    if known is not None and known.scope is scope and known.spec is spec:
        return known
    while len(_SOURCES) >= _MOST_MODULES:
        _SOURCES.pop(next(iter(_SOURCES)), None)
    _SOURCES[file] = source = _read_source(file, scope)
    return source


def _read_source(file: str, scope: dict[str, Any], *, is_imported: bool = True) -> Source:
    is_patchable = is_imported and syntax.find_shell() is not None
    status = status_of(file) if is_patchable else (0, 0)
    linecache.checkcache(file)
    text = "".join(linecache.getlines(file, scope))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # already shown at the import
        try:
            tree = ast.parse(text)
        except SyntaxError:  # for another Python, imported only under a condition: it counts as a whole
            return Source(file, scope, scope.get("__spec__"), {"": [(ast.Constant(text),)]})
    statements = [*syntax.top_statements(tree.body, ())]
    reader = _Reader(scope)
    reader.functions.update({each.name: each for *_, each in statements if isinstance(each, syntax.FUNCTIONS)})
    for nodes in statements:
        reader.read(nodes)
    spec, was_edited = scope.get("__spec__"), is_imported and is_edited(file, scope)
    parts, states = reader.parts(), dict[str, Any]()
    if is_patchable:
        names = {*parts["definitions"], *parts["imports"]}
        states = {name: state_of(scope.get(name.removeprefix(CHANGED))) for name in names}
    more: dict[str, Any] = {"is_edited": was_edited, "text": text, "status": status, "states": states}
    return Source(file, scope, spec, **parts, **more)


@attrs.define(eq=False, repr=False)
class _Reader:
    """Collects what the top-level statements of a module define; see `Source`."""

    scope: dict[str, Any]
    is_cell: bool = False
    functions: dict[str, Any] = attrs.field(factory=dict)
    definitions: dict[str, list[tuple[ast.AST, ...]]] = attrs.field(factory=dict)
    own: set[str] = attrs.field(factory=set)
    imports: dict[str, list[syntax.Import]] = attrs.field(factory=dict)
    stars: dict[str, Place] = attrs.field(factory=dict)
    places: dict[str, list[tuple[Place, bool]]] = attrs.field(factory=dict)
    modules: set[str] = attrs.field(factory=set)
    extended: dict[str, set[str]] = attrs.field(factory=dict)
    aliases: dict[str, set[str]] = attrs.field(factory=dict)
    wholes: set[str] = attrs.field(factory=set)

    def read(self, nodes: tuple[Any, ...]) -> ast.AST:
        """Read a statement, which follows its guards; return the node that stands for it in the definitions."""
        guards: tuple[ast.AST, ...] = nodes[:-1]
        statement: ast.AST = nodes[-1]
        if isinstance(statement, ast.Import | ast.ImportFrom):
            return self._read_import(guards, statement)
        bound, changed = syntax.find_bound_names([statement], is_cell=self.is_cell)
        self.own |= bound
        if any(map(syntax.is_main_guard, guards)):
            changed -= self.imports.keys()
        aliases, found = self.aliases, syntax.find_aliases(statement)
        if not guards:
            for name in bound - found.keys():
                aliases.pop(name, None)
        for name, bases in found.items():
            aliases[name] = {other for base in bases for other in aliases.get(base, {base})}
        self.wholes = (self.wholes | found.keys()) if syntax.is_of_name(statement) else (self.wholes - found.keys())
        # A method of a part counts only if it extends it or takes from it.
        surely = self.wholes | syntax.find_bound_names([statement], is_cell=True)[1]
        changed = changed.union(*(aliases.get(name, ()) for name in changed & surely))
        for function in syntax.find_called_functions(statement, self.functions):
            assigned, self.extended[function.name] = syntax.find_set_names(function)
            self.own |= assigned
            changed |= assigned | self.extended[function.name]
        for name in bound | changed:
            counted = syntax.find_guards(guards, name)
            self._note_place(name, statement, is_certain=name in bound and not counted)
            self.definitions.setdefault(name, []).append((*counted, statement))
        return statement

    def _read_import(self, guards: tuple[ast.AST, ...], statement: ast.Import | ast.ImportFrom) -> ast.AST:
        """Read an import. Its guards count, and that it follows a definition of its name."""
        if not any(map(syntax.is_type_checking, guards)):
            self.modules.update(syntax.imported_modules(statement, self.scope))
        if any(syntax.is_type_checking(each) or syntax.is_main_guard(each) for each in guards):
            guards = ()
        standing = ast.copy_location(ast.Import([]), statement)  # without the names: those of modules do not count
        for name, target in syntax.list_bindings(statement, self.scope):
            counted = syntax.find_guards(guards, name)
            if name == "*":
                self.stars[target.module] = () if self.is_cell else place_of(statement)
            elif target not in self.imports.setdefault(name, []):
                self._note_place(name, statement, is_certain=not counted)
            if name != "*":
                self.imports[name].append(target)
            if counted or name in self.definitions:
                self.definitions.setdefault(name, []).append((*counted, standing))
        return standing

    def _note_place(self, name: str, statement: ast.AST, *, is_certain: bool) -> None:
        if not self.is_cell:
            self.places.setdefault(name, []).append((place_of(statement), is_certain))

    def parts(self) -> dict[str, Any]:
        """Return the parts of the `Source`."""
        definitions: dict[str, list[tuple[ast.AST, ...]]] = {}
        for name, found in self.definitions.items():
            counted = found if self.stars else self._without_tries(name, found)
            if name in self.own:
                definitions[name] = counted
            elif name in {*self.imports, "*"} and any(nodes[1:] or not _is_import(nodes) for nodes in counted):
                definitions[CHANGED + name] = counted
        names = self.own | self.imports.keys()
        places = {name: found for name, found in self.places.items() if name in names and (found[1:] or self.stars)}
        parts = {"definitions": definitions, "imports": self.imports, "stars": self.stars, "places": places}
        return {**parts, "modules": frozenset(self.modules), "extended": self.extended}

    def _without_tries(self, name: str, found: list[tuple[ast.AST, ...]]) -> list[tuple[ast.AST, ...]]:
        """Leave out what a `try` tries before the only definition of a name: where it has failed, no result used the name."""
        if len(self.imports.get(name, ())) + sum(not _is_import(nodes) for nodes in found) > 1:
            return found
        return [tuple(each for each in nodes if not isinstance(each, ast.Try | ast.ExceptHandler)) for nodes in found]


@attrs.frozen(eq=False, repr=False)
class _Notebook(Source):
    """The cells that a shell has run, as one module.

    A statement that binds a name again, such as that of an edited cell, makes a new version of the name. Functions use the
    latest versions when they are called; any other statement has used those of its time. Names do not count as changed
    by calls of methods, with which cells show values, unless the method's name says so.

    Attributes:
        shell: the shell.
        cells: the texts of the cells.
        texts: the texts that the shell has compiled.
        versions: the older versions of a name: the number of the statement that ended it, and its name there.
        times: the number of each statement, by the `id` of its node.
    """

    shell: Any = None
    cells: list[str] = attrs.field(factory=list)
    texts: dict[str, None] = attrs.field(factory=dict)
    versions: dict[str, list[tuple[int, str]]] = attrs.field(factory=dict)
    times: dict[int, int] = attrs.field(factory=dict)

    def find_used_names(self, nodes: tuple[ast.AST, ...]) -> tuple[set[str], set[syntax.Import]]:
        """Return the names that a statement uses, those that it has used itself in the version of its time."""
        used, _ = syntax.find_used_names(nodes, self.scope, is_run=True)
        called, _ = syntax.find_used_names(syntax.find_functions(nodes), self.scope)
        return {self._name_version(each, nodes[-1]) for each in used} | called, super().find_used_names(nodes)[1]

    def _name_version(self, dotted: str, statement: ast.AST) -> str:
        head, dot, rest = dotted.partition(".")
        time = self.times.get(id(statement), sys.maxsize)
        return next((name for end, name in self.versions.get(head, ()) if time <= end), head) + dot + rest

    def first_line(self, code: CodeType) -> int:
        """Return the first line of a function in the statements of its cell; 0 if it is not from a cell."""
        offset = syntax.find_cell_offset(self.shell, self.texts, code)
        return 0 if offset is None else offset + code.co_firstlineno

    def locate(self, part: FunctionType | type) -> tuple[Source | None, tuple[str, ...]] | None:
        """Return the names of the definition of a function or class; None if it is not from a cell."""
        if isinstance(part, FunctionType):
            line = self.first_line(part.__code__)
            return (self, self.names_at(line, part.__code__.co_name)) if line else None
        for name, each in vars(part).items():  # a class of an older cell is found by its methods
            if isinstance(each, FunctionType) and each.__code__.co_qualname == f"{part.__qualname__}.{name}":
                return locate_part(each)
        name = part.__qualname__.partition(".")[0]
        return (self, (name,)) if name in self.definitions else None


_NOTEBOOKS: list[_Notebook] = []
"""The last one that was read."""


def find_notebook(scope: dict[str, Any]) -> _Notebook | None:
    """Return the cells that define the names of a namespace; None for that of a module or script."""
    shell = syntax.find_shell()
    if shell is None or shell.user_ns is not scope:
        return None
    if not _NOTEBOOKS or _NOTEBOOKS[0].scope is not scope or _has_new_cells():
        _NOTEBOOKS[:] = [_read_notebook(shell, scope)]
    return _NOTEBOOKS[0]


def _has_new_cells() -> bool:
    """Return whether cells have run since they were read."""
    return any(each.cells != syntax.list_cells(each.shell) for each in _NOTEBOOKS)


def _read_notebook(shell: Any, scope: dict[str, Any]) -> _Notebook:
    texts = syntax.list_cells(shell)
    statements = [statement for text in texts for statement in syntax.read_cell(shell, text)]
    reader = _Reader(scope, is_cell=True)
    reader.functions.update({each.name: each for each in statements if isinstance(each, syntax.FUNCTIONS)})
    versions: dict[str, list[tuple[int, str]]] = {}
    times: dict[int, int] = {}
    for time, statement in enumerate(statements):
        for name in syntax.find_certain_names(statement) - {"*"}:
            version = f"{name}@{time}"
            if name in reader.definitions or name in reader.imports:
                versions.setdefault(name, []).append((time, version))
            by_name: list[dict[str, Any]] = [reader.definitions, reader.imports]
            for known in by_name:
                if name in known:
                    known[version] = known.pop(name)
            if name in reader.own:
                reader.own.remove(name)
                reader.own.add(version)
            reader.aliases.pop(name, None)
        for nodes in syntax.top_statements([statement], ()):
            times[id(reader.read(nodes))] = time
    for name, found in reader.definitions.items():
        # A cell that runs twice counts once, and the last of several values of one item counts.
        reader.definitions[name] = [*{syntax.name_change(nodes): nodes for nodes in found}.values()]
    more: dict[str, Any] = {"shell": shell, "cells": texts, "texts": syntax.list_cell_texts(shell)}
    return _Notebook(CELLS, scope, None, **reader.parts(), **more, versions=versions, times=times)


def _is_function_at(node: ast.AST, line: int, name: str) -> bool:
    is_function = isinstance(node, (*syntax.FUNCTIONS, ast.Lambda))
    return is_function and getattr(node, "name", "<lambda>") == name and _first_line(node) == line


def _heads(names: Iterable[str]) -> set[str]:
    """Return the first parts of dotted names."""
    return {each.partition(".")[0] for each in names}


def _is_import(nodes: tuple[ast.AST, ...]) -> bool:
    return isinstance(nodes[-1], ast.Import)


def place_of(node: Any) -> Place:
    """Return the line and the column of a node."""
    return node.lineno, node.col_offset


def _first_line(node: Any) -> int:
    decorators: list[Any] = getattr(node, "decorator_list", [])
    return min(int(each.lineno) for each in (node, *decorators))


# --- what defines a function or class --------------------------------------------------------------------------------


def locate_part(part: FunctionType | type) -> tuple[Source | None, tuple[str, ...]]:
    """Return the module of a function or class, and the top-level names of the definition that contains it."""
    code = None
    if isinstance(part, FunctionType):
        scope, code = part.__globals__, part.__code__
        file = code.co_filename
    else:
        scope = vars(sys.modules[part.__module__]) if part.__module__ in sys.modules else {}
        file = scope.get("__file__") or ""
    if (notebook := find_notebook(scope)) is not None and (found := notebook.locate(part)) is not None:
        return found
    if not file or file[0] == "<" or is_installed(file):
        return None, ()
    module = source_of(file, scope)
    name = part.__qualname__.partition(".")[0]
    if code is not None:
        try:
            return module, module.names_at(code.co_firstlineno, code.co_name)
        except LookupError:  # a shell has patched it, or it is from before a reload: see `is_outdated`
            if name not in module.definitions or not (module.states or is_reloaded(scope)):
                raise
    return module, (name,) if name in module.definitions else ()


def is_made_in_loop(part: FunctionType | type) -> bool:
    """Return whether a function or class may be one of several that a loop makes, and that differ by values only."""
    try:
        source, names = locate_part(part)
    except Exception:  # the source is not available, or has changed since
        return False
    is_lambda = isinstance(part, FunctionType) and part.__code__.co_name == "<lambda>"
    return source is not None and (source.is_loop(names) or (is_lambda and source.has_comprehension(names)))


def find_literals(kind: type) -> set[str]:
    """Return the attributes to which the body of a class assigns literals, which its text includes."""
    try:
        source, names = locate_part(kind)
    except Exception:  # the source is not available, or has changed since
        return set()
    tops = [nodes[-1] for name in names for nodes in source.definitions.get(name, ())] if source is not None else []
    classes = (node for top in tops for node in ast.walk(top) if isinstance(node, ast.ClassDef))
    body = [each for node in classes if node.name == kind.__name__ for each in node.body]
    return {
        target.id
        for each in body
        if isinstance(each, ast.Assign | ast.AnnAssign) and isinstance(each.value, ast.Constant)
        for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
        if isinstance(target, ast.Name)
    }


def is_outdated(part: FunctionType | type, located: Source | None = None) -> bool:
    """Return whether a function or class is not that of its module's text, because it is from before a reload.

    Args:
        part: the function or class.
        located: the source in which `locate_part` has looked for it.
    """
    code = part.__code__ if isinstance(part, FunctionType) else None
    is_moved = code is not None and type(located) is Source and not located.is_known_at(code)
    scope = part.__globals__ if isinstance(part, FunctionType) else scope_of(part.__module__)
    now, was_reloaded = scope.get(part.__qualname__), is_reloaded(scope)
    if now is part and not is_moved and not was_reloaded:
        return False
    places = [each for each in parts_of(now) if name_of(each) == name_of(part)] if is_code(now) else []
    is_replaced = bool(places) and not any(each is part for each in places)
    if not (is_replaced or is_moved or was_reloaded):
        return False
    try:
        source = locate_part(part)[0]
    except LookupError:
        return True
    if source is None or isinstance(source, _Notebook):
        return False
    if is_moved and not was_reloaded and code is not None and code.co_firstlineno > syntax.PATCHED_LINE:
        return True
    codes = [code] if code is not None else [each.__code__ for each in methods_of(part)]
    if any(each.co_filename == source.file and not syntax.has_code(source.text, each) for each in codes):
        return True
    # Two functions of one name, as a loop makes them, differ without any reload.
    may_be_older = was_reloaded or bool(source.states)
    return is_replaced and may_be_older and plain_values(part) != plain_values(places[0])


# --- the project -----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def project_root(file: str) -> str:
    """Return the root of a file's project; a cell of a notebook belongs to the working directory."""
    path = Path(file).resolve() if Path(file).is_file() else Path.cwd() / "cell"
    for parent in path.parents:
        if any((parent / mark).exists() for mark in _MARKS):
            return str(parent)
    top = path.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    return str(top)


@functools.lru_cache(maxsize=4096)
def is_first_party(file: str, root: str) -> bool:
    """Return whether a file is source of the project: below its root, not installed, and not flowckpt itself.

    Args:
        file: the file.
        root: the root of the project.
    """
    path = Path(file).resolve()
    if not file.endswith(".py") or not path.is_relative_to(root) or path.is_relative_to(_OWN):
        return False
    return _INSTALLED.isdisjoint(path.relative_to(root).parts) and not is_installed(file)


def find_source(name: str, root: str) -> Source | None:
    """Return the source of a first-party module, imported or not; None for any other module.

    Args:
        name: the full name of the module.
        root: the root of the project.
    """
    module = sys.modules.get(name)
    if module is None:
        file, paths = find_module(name)
    else:
        file, paths = getattr(module, "__file__", None) or "", ()
        if not file:
            paths = tuple(map(str, getattr(module, "__path__", ())))
    if not file:  # a namespace package has no code of its own, only modules
        return _NAMESPACE if any(Path(path).resolve().is_relative_to(root) for path in paths) else None
    if not is_first_party(file, root):
        return None
    known = _SOURCES.get(file)
    if module is None or (known is not None and known.scope.get("__name__") != name):
        # Not imported, or under another name, as the file of a run is: its source counts in any case.
        return known if known is not None else _read_unloaded(file, name)
    return source_of(file, vars(module))


_REACHED: dict[str, tuple[Source, dict[str, None], list[str]]] = {}


def reaches(module: ModuleType, name: str) -> bool:
    """Return whether importing a module imports another module of the project, directly or indirectly.

    Args:
        module: the module.
        name: the full name of the other module.
    """
    file = getattr(module, "__file__", None) or ""
    if not file or is_installed(file):
        return False
    try:
        source, root = source_of(file, vars(module)), project_root(file)
    except Exception:  # the source is not available, or has changed since
        return False
    known = _REACHED.get(file)
    if known is None or known[0] is not source:
        known = _REACHED[file] = source, {}, sorted(source.modules)
    _, seen, waiting = known
    while name not in seen and waiting:
        seen[each := waiting.pop()] = None
        found = None
        with contextlib.suppress(Exception):  # the source is not what was imported
            found = find_source(each, root) if each in sys.modules else None
        waiting += () if found is None else (other for other in sorted(found.modules) if other not in seen)
    return name in seen and find_source(name, root) is not None


_UNLOADED: dict[str, tuple[int, int, Source]] = {}


def _read_unloaded(file: str, name: str) -> Source | None:
    try:
        status = Path(file).stat()
    except OSError:
        return None
    known = _UNLOADED.get(file)
    if known is not None and known[:2] == (status.st_mtime_ns, status.st_size):
        return known[2]
    package = name if Path(file).name == "__init__.py" else name.rpartition(".")[0]
    source = _read_source(file, {"__name__": name, "__package__": package, "__file__": file}, is_imported=False)
    _UNLOADED[file] = status.st_mtime_ns, status.st_size, source
    return source


# --- reloads and edits -----------------------------------------------------------------------------------------------


def find_reloaded() -> list[str]:
    """Return the files of the modules that were reloaded since their source was read."""
    modules, found = sys.modules, list[str]()
    for file, source in [*_SOURCES.items()]:
        module = modules.get(source.scope.get("__name__", ""))
        if getattr(module, "__spec__", None) is source.spec:  # first, because it is nearly always true
            continue
        if isinstance(module, ModuleType) and vars(module) is source.scope:
            found.append(file)
    return found


def _find_patched() -> dict[str, Source]:
    """Return new sources for the files that a shell has loaded again into the same namespace: `%autoreload`, `%run`.

    A text counts for the code that runs if what it defines differently has changed in the namespace, too. If only some of
    that has, what runs is unknown.
    """
    found: dict[str, Source] = {}
    for file, known in [*_SOURCES.items()]:
        if not known.states or known.scope.get("__spec__") is not known.spec or status_of(file) == known.status:
            continue
        with contextlib.suppress(Exception):  # values that cannot be inspected
            source = _read_source(file, known.scope)
            names = known.find_changed_names(source)
            taken = [name for name in names if known.states.get(name) != source.states.get(name)]
            if taken:
                found[file] = attrs.evolve(source, is_edited=known.is_edited or len(taken) < len(names))
    return found


def _find_changed() -> list[str]:
    """Return the files that were read without an import and have changed since."""
    found = list[str]()
    for file, (mtime_ns, size, _) in [*_UNLOADED.items()]:
        try:
            status = Path(file).stat()
        except OSError:
            found.append(file)
            continue
        if (status.st_mtime_ns, status.st_size) != (mtime_ns, size):
            found.append(file)
    return found


def refresh() -> None:
    """Read sources again if they have changed, as in notebooks; called once for each start."""
    _REACHED.clear()
    reloaded, changed, patched = find_reloaded(), _find_changed(), _find_patched()
    for file in reloaded:
        _SOURCES.pop(file, None)
    for file in changed:
        _UNLOADED.pop(file, None)
    _SOURCES.update(patched)
    if reloaded or patched:
        for source in [*_SOURCES.values()]:  # its module may hold something from before the reload
            source.forget_texts()
    if reloaded or changed or patched or _has_new_cells():
        forget_functions()
