"""The fingerprint of code: a digest of its syntax tree, in which comments, formatting and docstrings do not count.

A workflow is known by its own tree. A step is known by more: the definition that its function stands in, and all that
this names and its module defines at the top, and what that names in turn. All of it is read from the source and nothing
from values, so the same files have the same fingerprint in every process, under every version of Python.

- One name may have several definitions (`if`/`else`, `try`/`except`, `TABLE = {}` and then `TABLE["a"] = 1`): all count,
  in their order, with the tests of the `if`s around them.
- A name that a scope makes its own (a parameter, a local variable) is not the module's. Where that is hard to tell, the
  definition counts: a code change that is none can be waved through, one that nobody sees cannot.
- What another module defines counts by the name it goes by here. So do the standard library and installed packages as a
  whole, and an upgrade of them strands no run.
- What wraps a function, and functions of the project that it holds in its closure, are code of the step too.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
import sys
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from types import FunctionType, MethodType
from typing import Any

import attrs

from flowckpt.core.system.functions import cached_per_function, is_installed, per_pair

FORM = "ast:v1:"
STEP_FORM = "1:"

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_MOST_PARTS, _MOST_MODULES = 32, 256


def fingerprint(function: Callable[..., Any]) -> str:
    """Return the fingerprint of a function's own text; empty where its source is not at hand (a REPL, a builtin).

    Args:
        function: the function; decorators around it that keep `__wrapped__` are looked through. One that is defined
            inside another stands for the whole of it.
    """
    try:
        module, names = _place(inspect.unwrap(function))
        texts = [module.text(name) for name in sorted(names)] if module else []
    except Exception:  # no function; or not the source that was imported
        return ""
    return FORM + sha256("\n".join(texts).encode()).hexdigest() if texts else ""


def fingerprint_of_source(source: str) -> str:
    """Return the fingerprint of a piece of source; empty where it does not parse by itself.

    Args:
        source: the text of a definition, indented or not.
    """
    # Indented source becomes a block; to dedent it would change its strings, and fails where one has a line at column 0.
    is_indented = source[:1] in (" ", "\t")
    try:
        tree: ast.AST = ast.parse(f"if 1:\n{source}" if is_indented else source)
    except (SyntaxError, ValueError):
        return ""
    if is_indented:
        tree = ast.Module(tree.body[0].body, [])  # type: ignore[attr-defined]
    return FORM + sha256(_text(tree).encode()).hexdigest()


def step_fingerprint(function: Callable[..., Any]) -> str:
    """Return the fingerprint of a step's function: `1:` and 22 characters; empty where its source cannot be known.

    Args:
        function: a function, method, class, partial or callable object.
    """
    try:
        while isinstance(function, functools.partial):
            function = function.func
        if isinstance(function, FunctionType | type):
            return _of_one(function)
        if isinstance(function, MethodType):  # a new object each time, so known by what it is made of
            return _of_pair(function.__func__, _owner(function))
        call = getattr(type(function), "__call__", None)
        if type(call) is not FunctionType or getattr(function, "__wrapped__", None) is not None:
            return _of_one(function)
        return _of_pair(type(function), call)  # objects of a class are one code
    except Exception:  # a user's object that does not like to be looked at
        return ""


def _digest(*known_by: Any) -> str:
    wanted: dict[_Module, set[str]] = {}
    try:
        for part in _parts(*known_by):
            module, names = _place(part)
            if module and names:
                wanted.setdefault(module, set()).update(names)
        texts = [text for module, names in wanted.items() for text in module.texts(names)]
    except Exception:  # not the source that was imported: a syntax error, a tree too deep
        return ""
    digest = sha256("\n".join(texts).encode()).digest()[:16]
    return STEP_FORM + urlsafe_b64encode(digest).decode().rstrip("=") if texts else ""


_of_one = cached_per_function(_digest)
_of_pair = per_pair(_digest)


# --- what a callable consists of -------------------------------------------------------------------------------------


def _parts(*functions: Any) -> tuple[FunctionType | type, ...]:
    """Return the functions and classes that callables run, as far as they hold them themselves."""
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
            waiting += [part.__func__, _owner(part)]
        elif type(part) is FunctionType:
            waiting += [vars(part).get("__wrapped__"), *_held(part)]
        elif not isinstance(part, type):
            call = getattr(type(part), "__call__", None)
            waiting += [type(part), call if type(call) is FunctionType else None, getattr(part, "__wrapped__", None)]
    return tuple(part for part in seen.values() if isinstance(part, FunctionType | type))


def _owner(method: MethodType) -> type:
    owner = method.__self__
    return owner if isinstance(owner, type) else type(owner)


def _held(function: FunctionType) -> Iterator[FunctionType]:
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if type(content) is FunctionType:
            yield content


def _place(part: FunctionType | type) -> tuple[_Module | None, tuple[str, ...]]:
    """Return the module of a function or class, and the names at its top that the definition stands under."""
    code = None
    if isinstance(part, FunctionType):
        scope, code = part.__globals__, part.__code__
        file = code.co_filename
    else:
        scope = vars(sys.modules[part.__module__]) if part.__module__ in sys.modules else {}
        file = scope.get("__file__") or ""
    if not file or file[0] == "<" or is_installed(file):
        return None, ()
    module = _module(file, scope)
    if code is not None:
        return module, module.names_at(code.co_firstlineno, code.co_name)
    name = part.__qualname__.partition(".")[0]
    return module, (name,) if name in module.definitions else ()


# --- modules ---------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False, repr=False)
class _Module:
    """The definitions at the top of one module, by name, each with the tests of the `if`s around it."""

    scope: dict[str, Any]
    spec: object
    definitions: Mapping[str, list[tuple[ast.AST, ...]]]
    _written: dict[str, tuple[str, frozenset[str]]] = attrs.field(factory=dict)
    _found: dict[tuple[int, str], tuple[str, ...]] = attrs.field(factory=dict)

    def names_at(self, line: int, name: str) -> tuple[str, ...]:
        """Return the names at the top under which the function stands that begins at a line, its decorators included.

        Looked for once: a function within a function is another object at each call of the outer one.

        Raises:
            LookupError: there is none.
        """
        if (known := self._found.get((line, name))) is not None:
            return known
        found: dict[str, None] = {}
        for top, definitions in self.definitions.items():
            for *_, statement in definitions:
                if _first_line(statement) <= line <= statement.end_lineno and any(  # type: ignore[attr-defined]
                    isinstance(node, (*_FUNCTIONS, ast.Lambda))
                    and getattr(node, "name", "<lambda>") == name
                    and _first_line(node) == line
                    for node in ast.walk(statement)
                ):
                    found[top] = None
        if not found:
            raise LookupError(f"no {name} at line {line}: the file is not what was imported")
        self._found[line, name] = names = tuple(found)
        return names

    def texts(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the texts of these definitions and of all that they reach, in the order of their names."""
        waiting, reached = sorted(names), dict[str, str]()
        yield ",".join(waiting)
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached[name], used = self._written.get(name) or self._write(name)
                waiting += used - reached.keys()
        for name in sorted(reached):
            yield f"{name}: {reached[name]}"

    def text(self, name: str) -> str:
        """Return the text of the definitions of a name."""
        return (self._written.get(name) or self._write(name))[0]

    def _write(self, name: str) -> tuple[str, frozenset[str]]:
        definitions = self.definitions[name]
        used = frozenset(each for nodes in definitions for each in _used(nodes) if each in self.definitions)
        text = "; ".join(_text(list(nodes)) for nodes in definitions)
        self._written[name] = text, used
        return text, used


_MODULES: dict[str, _Module] = {}


def _module(file: str, scope: dict[str, Any]) -> _Module:
    """Return the definitions of a module, read once for each time it is imported.

    The namespace and the spec tell one import from the next: a file that is edited while its run goes on must not lend
    its new text to the code that was imported before.
    """
    known, spec = _MODULES.get(file), scope.get("__spec__")
    if known is not None and known.scope is scope and known.spec is spec:
        return known
    linecache.checkcache(file)
    source = "".join(linecache.getlines(file, scope))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # told when it was imported
        tree = ast.parse(source)
    definitions: dict[str, list[tuple[ast.AST, ...]]] = {}
    own = set[str]()
    for nodes in _top(tree.body, ()):
        bound, changed = _bound([nodes[-1]])
        own |= bound
        for name in bound | changed:
            definitions.setdefault(name, []).append(nodes)
    definitions = {name: found for name, found in definitions.items() if name in own}  # not `logging.basicConfig()`
    while len(_MODULES) >= _MOST_MODULES:
        _MODULES.pop(next(iter(_MODULES)), None)
    _MODULES[file] = module = _Module(scope, spec, definitions)
    return module


def _top(body: Iterable[ast.stmt], tests: tuple[ast.AST, ...]) -> Iterator[tuple[ast.AST, ...]]:
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _top([*statement.body, *statement.orelse], (*tests, statement.test))
        elif isinstance(statement, ast.Try | ast.TryStar):
            handled = [inner for handler in statement.handlers for inner in handler.body]
            yield from _top([*statement.body, *handled, *statement.orelse, *statement.finalbody], tests)
        elif not isinstance(statement, ast.Import | ast.ImportFrom):
            yield (*tests, statement)


def _first_line(node: Any) -> int:
    decorators: list[Any] = getattr(node, "decorator_list", [])
    return min(int(each.lineno) for each in (node, *decorators))


# --- names -----------------------------------------------------------------------------------------------------------


def _bound(nodes: Iterable[ast.AST]) -> tuple[set[str], set[str]]:
    """Return the names that statements bind in their own scope, and those whose values they change."""
    bound, changed = set[str](), set[str]()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, _DEFINITIONS):
            bound.add(node.name)
            changed |= {name for decorator in node.decorator_list if (name := _registry(decorator))}
        elif isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                bound.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, _COMPREHENSIONS):
            bound |= {inner.target.id for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr)}
        elif not isinstance(node, ast.Lambda):
            if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
                changed.add(_base(node))
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                changed.add(_base(node.value.func) if isinstance(node.value.func, ast.Attribute) else "")
            elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
                bound.add(node.name or "")
            elif isinstance(node, ast.MatchMapping):
                bound.add(node.rest or "")
            waiting += ast.iter_child_nodes(node)
    return bound - {""}, changed - {""}


def _registry(decorator: ast.expr) -> str:
    """Return `area` for `@area.register` and `@area.register(Circle)`: the function answers for `area` from then on."""
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return _base(function) if isinstance(function, ast.Attribute) and function.attr == "register" else ""


def _base(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _used(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names of the module that definitions may mean."""
    used = set[str]()
    waiting: list[tuple[ast.AST, frozenset[str]]] = [(node, frozenset()) for node in nodes]
    while waiting:
        node, hidden = waiting.pop()
        if isinstance(node, ast.Name):
            if node.id not in hidden:
                used.add(node.id)
        elif isinstance(node, ast.Global):
            used |= {*node.names}
        elif isinstance(node, (*_FUNCTIONS, ast.Lambda)):
            body = [node.body] if isinstance(node, ast.Lambda) else node.body
            arguments = [each for each in ast.iter_child_nodes(node.args) if isinstance(each, ast.arg)]
            hidden |= {each.name for each in getattr(node, "type_params", ())}
            inner = hidden | _bound(body)[0] | {argument.arg for argument in arguments}
            waiting += [(each, inner) for each in body]
            outer = [each for each in ast.iter_child_nodes(node.args) if not isinstance(each, ast.arg)]
            outer += [] if isinstance(node, ast.Lambda) else [*node.decorator_list, *getattr(node, "type_params", ())]
            waiting += [(each, hidden) for each in outer]
            for said in (*(argument.annotation for argument in arguments), getattr(node, "returns", None)):
                if said is not None:
                    waiting.append((said, hidden))
                    used |= _quoted(said)
        elif isinstance(node, _COMPREHENSIONS):
            first = node.generators[0].iter
            waiting.append((first, hidden))
            hidden |= _bound([generator.target for generator in node.generators])[0]
            parts = [each for part in node.generators for each in (part.target, part.iter, *part.ifs)]
            parts += [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            waiting += [(part, hidden) for part in parts if part is not first]
        else:
            if isinstance(node, ast.AnnAssign):
                used |= _quoted(node.annotation)
            waiting += [(each, hidden) for each in ast.iter_child_nodes(node)]
    return used


def _quoted(annotation: ast.expr) -> set[str]:
    """Return the names in the strings of an annotation: `"Config"` means the class."""
    texts = [node.value for node in ast.walk(annotation) if isinstance(node, ast.Constant)]
    return {name for text in texts if isinstance(text, str) for name in re.findall(r"\w+", text)}


# --- text ------------------------------------------------------------------------------------------------------------


def _text(tree: ast.AST | list[ast.AST]) -> str:
    """Write a tree as `ast.dump` does, but alike in every version of Python: what is empty or absent is left out.

    It uses no recursion: an expression of a thousand terms is a tree of that depth.
    """
    written: list[str] = []
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        if type(node) is tuple:  # what comes after a node: written as it stands
            written.append(node[0])
        elif isinstance(node, list):
            waiting.append(("]",))
            for index in range(len(node) - 1, -1, -1):
                waiting += [node[index], (", ",)] if index else [node[index]]
            written.append("[")
        elif isinstance(node, ast.AST):
            waiting.append((")",))
            written.append(f"{type(node).__name__}(")
            said = _fields(node)
            for index in range(len(said) - 1, -1, -1):
                name, value = said[index]
                waiting += [value, (f", {name}=" if index else f"{name}=",)]
        else:
            written.append(_literal(node))
    return "".join(written)


def _fields(node: ast.AST) -> list[tuple[str, Any]]:
    if isinstance(node, ast.Constant):
        return [("value", (_literal(node.value),))]
    said = [(name, value) for name in node._fields if (value := getattr(node, name, None)) is not None and value != []]
    if isinstance(node, _DEFINITIONS) and ast.get_docstring(node, clean=False):
        said = [(name, value[1:] or [ast.Pass()] if name == "body" else value) for name, value in said]
    elif isinstance(node, ast.JoinedStr):  # Python 3.12 leaves empty pieces in some
        pieces = [each for each in node.values if not (isinstance(each, ast.Constant) and each.value == "")]
        said = [("values", pieces)] if pieces else []
    return said


def _literal(value: object) -> str:
    """Write a constant: in ASCII, as what `repr` calls printable changes with Unicode, and without the limit on digits."""
    return hex(value) if type(value) is int and abs(value) >= 1 << 64 else ascii(value)
