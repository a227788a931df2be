"""Syntax trees: their text, which fingerprints digest, and the names that statements bind, change and use.

Comments, formatting and docstrings do not count in the text.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import linecache
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType
from typing import Any, NamedTuple, TypeAlias

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
_COMPREHENSIONS = {ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp}
_CALLABLES = {*FUNCTIONS, ast.Lambda}
_EXTENDING = {"add", "append", "appendleft", "extend", "insert", "setdefault", "update"}
_TAKING = {"pop", "popitem", "popleft", "setdefault"}
"""The methods that change a value and return a part of it."""
_GIVING = {"get", "items", "pop", "setdefault", "values"}
"""The methods that return parts of a value."""
_PASSING = {"enumerate", "iter", "list", "reversed", "sorted", "tuple", "zip"}
"""The functions that return their arguments, or their items."""
_TELLING = {"critical", "debug", "error", "exception", "info", "log", "print", "warn", "warning"}
"""The functions and methods that only tell something, and do not fail."""
_MOST_TRIED = 30
"""How many statements before another one count in a `try`: each statement has a copy of them."""
_SPECIFIERS = {"Field", "attrib", "field", "ib"}
"""The functions that describe a field: of dataclasses, attrs and pydantic."""
_DEFAULTS = {"default", "default_factory", "factory"}
"""Their keywords that only matter when a value is made."""
_MAKING = {"frozen", "init", "kw_only", "slots"}
"""The keywords of a class or its decorator that change nothing that a value shows."""
_PLACES = {ast.Attribute, ast.Subscript}
_PATTERNS = {ast.ExceptHandler, ast.MatchAs, ast.MatchStar}
_IMPORTS = {ast.Import, ast.ImportFrom}
_BARE = {
    cls: f"{cls.__name__}()"
    for cls in map(ast.__dict__.get, dir(ast))
    if isinstance(cls, type) and issubclass(cls, ast.AST) and not cls._fields
}
"""The text of nodes without fields: contexts, operators, `pass`."""
_WITHOUT_NAMES = {*_BARE, ast.Constant, type(None), str, int}


def format_tree(tree: ast.AST | list[Any]) -> str:
    """Write a tree like `ast.dump`, but the same in every Python version: empty and absent fields are left out."""
    try:
        return _format_node(tree)
    except RecursionError:  # an expression of a thousand terms is a tree a thousand levels deep
        return _write_deep_tree(tree)


_WITH_EXCEPTIONS = {*_DEFINITIONS, ast.JoinedStr}


def _format_node(node: Any) -> str:
    # Takes half of the time for the fingerprints of a start, so the three most common kinds of nodes come first.
    kind = type(node)
    if (bare := _BARE.get(kind)) is not None:
        return bare
    if kind is ast.Name:
        return f"Name(id={node.id!a}, ctx={_BARE[type(node.ctx)]})"
    if kind is ast.Constant:
        return f"Constant(value={_write_literal(node.value)})"
    if kind is ast.Attribute:
        return f"Attribute(value={_format_node(node.value)}, attr={node.attr!a}, ctx={_BARE[type(node.ctx)]})"
    if kind is list:
        return f"[{', '.join([_format_node(each) for each in node])}]"
    if not isinstance(node, ast.AST):
        return _write_literal(node)
    if kind in _WITH_EXCEPTIONS:
        fields = [f"{name}={_format_node(value)}" for name, value in _written_fields(node)]
    else:
        fields = [
            f"{name}={_format_node(value)}"
            for name in node._fields
            if (value := getattr(node, name, None)) is not None and value != []
        ]
    return f"{kind.__name__}({', '.join(fields)})"


def _write_deep_tree(tree: ast.AST | list[Any]) -> str:
    """Return the same as `_format_node`, without recursion."""
    written: list[str] = []
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        if type(node) is tuple:  # text that follows a node
            written.append(node[0])
        elif isinstance(node, list):
            waiting.append(("]",))
            for index in range(len(node) - 1, -1, -1):
                waiting += [node[index], (", ",)] if index else [node[index]]
            written.append("[")
        elif isinstance(node, ast.AST):
            waiting.append((")",))
            written.append(f"{type(node).__name__}(")
            fields = _written_fields(node)
            for index in range(len(fields) - 1, -1, -1):
                name, value = fields[index]
                waiting += [value, (f", {name}=" if index else f"{name}=",)]
        else:
            written.append(_write_literal(node))
    return "".join(written)


def _written_fields(node: ast.AST) -> list[tuple[str, Any]]:
    if isinstance(node, ast.Constant):
        return [("value", (_write_literal(node.value),))]
    kept = [(name, value) for name in node._fields if (value := getattr(node, name, None)) is not None and value != []]
    if isinstance(node, _DEFINITIONS) and ast.get_docstring(node, clean=False):
        kept = [(name, value[1:] or [ast.Pass()] if name == "body" else value) for name, value in kept]
    elif isinstance(node, ast.JoinedStr):  # Python 3.12 leaves empty parts in some
        pieces = [each for each in node.values if not (isinstance(each, ast.Constant) and each.value == "")]
        kept = [("values", pieces)] if pieces else []
    return kept


def _write_literal(value: object) -> str:
    """Write a constant in ASCII, because `repr` depends on the Unicode version, and without the limit on digits."""
    return hex(value) if type(value) is int and abs(value) >= 1 << 64 else ascii(value)


# --- names -----------------------------------------------------------------------------------------------------------


class Import(NamedTuple):
    """The target of an import: a module, or an attribute of one.

    Attributes:
        module: the full name of the module; empty for a relative import beyond the top-level package.
        attribute: the attribute; empty for the module itself.
    """

    module: str
    attribute: str = ""

    def __str__(self) -> str:
        return f"{self.module}.{self.attribute}" if self.attribute else self.module


def list_bindings(statement: ast.Import | ast.ImportFrom, scope: Mapping[str, Any]) -> Iterator[tuple[str, Import]]:
    """Yield the names that an import binds, with their targets; `scope`, its module's names, resolves a relative one."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            if alias.asname:
                yield alias.asname, Import(alias.name)
            else:
                yield alias.name.partition(".")[0], Import(alias.name.partition(".")[0])
        return
    module = statement.module or ""
    if statement.level:
        parts = str(scope.get("__package__") or "").split(".")
        kept = parts[: len(parts) - statement.level + 1]
        module = (
            ".".join([*kept, *([module] if module else [])]) if len(kept) == len(parts) - statement.level + 1 else ""
        )
    for alias in statement.names:
        yield alias.asname or alias.name, Import(module, "" if alias.name == "*" else alias.name)


def find_bound_names(nodes: Iterable[ast.AST], *, is_cell: bool = False) -> tuple[set[str], set[str]]:
    """Return the names that statements bind in their own scope, and those whose values they modify.

    Args:
        nodes: the statements.
        is_cell: whether they are of a cell, which usually calls a method to show its result, not to change the value.
    """
    bound, changed = set[str](), set[str]()
    waiting: list[Any] = [*nodes]
    while waiting:
        node = waiting.pop()
        kind = type(node)
        if kind is ast.Name:
            if type(node.ctx) is not ast.Load:
                bound.add(node.id)
        elif kind in _DEFINITIONS:
            bound.add(node.name)
            changed |= {name for decorator in node.decorator_list if (name := _registry_name(decorator))}
        elif kind in _IMPORTS:
            bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif kind in _COMPREHENSIONS:
            bound |= {inner.target.id for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr)}
        elif kind is not ast.Lambda:
            if kind in _PLACES and type(node.ctx) is not ast.Load:
                changed.add(_base_name(node))
            elif kind is ast.Expr and type(node.value) is ast.Call:
                if type(node.value.func) is ast.Attribute and (not is_cell or _is_extending(node.value)):
                    changed.add(_base_name(node.value.func))
            elif kind is ast.Call and type(node.func) is ast.Attribute and node.func.attr in _TAKING:
                changed.add(_base_name(node.func))
            elif kind in _PATTERNS:
                bound.add(node.name or "")
            elif kind is ast.MatchMapping:
                bound.add(node.rest or "")
            waiting += _child_nodes(node)
    return bound - {""}, changed - {""}


def _is_extending(call: ast.Call) -> bool:
    return getattr(call.func, "attr", "") in _EXTENDING or any(each.arg == "inplace" for each in call.keywords)


def find_certain_names(statement: ast.stmt) -> set[str]:
    """Return the names that a statement binds whatever its conditions are."""
    if isinstance(statement, ast.If):
        bodies = [set[str]().union(*map(find_certain_names, body)) for body in (statement.body, statement.orelse)]
        return bodies[0] & bodies[1]
    is_only_annotated = isinstance(statement, ast.AnnAssign) and statement.value is None
    return set() if is_only_annotated else find_bound_names([statement])[0]


def find_aliases(statement: ast.AST) -> dict[str, set[str]]:
    """Return the names that stand for the value of another name, or for a part of it, with those names."""
    found: dict[str, set[str]] = {}
    waiting: list[Any] = [statement]
    for node in waiting:  # the outer statements first
        if type(node) in _DEFINITIONS:
            continue
        pairs: list[tuple[ast.expr, ast.expr]] = []
        match node:
            case ast.For(target=ast.expr() as target, iter=ast.Tuple(elts=values) | ast.List(elts=values)):
                pairs = [(target, value) for value in values]
            case ast.For(target=ast.Tuple(elts=[_, target]), iter=ast.Call(ast.Name("enumerate"), [value, *_])):
                pairs = [(target, value)]
            case ast.For(target=ast.Tuple(elts=targets), iter=ast.Call(ast.Name("zip"), values)):
                pairs = [*zip(targets, values, strict=False)]
            case ast.For(target=target, iter=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                pairs = [(target, value)]
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                pairs = [*zip(targets, values, strict=False)]
            case ast.Assign(targets=targets, value=value):
                pairs = [(target, value) for target in targets]
        for target, value in pairs:
            for name in find_bound_names([target])[0]:
                found.setdefault(name, set()).update(_find_bases(value, is_of_items=isinstance(node, ast.For)))
        waiting += [each for each in _child_nodes(node) if isinstance(each, ast.stmt | ast.match_case)]
    return {name: bases for name, bases in found.items() if bases}


def is_of_name(statement: ast.AST) -> bool:
    """Return whether a statement assigns the value of a name, or loops over it, and not over a part of it."""
    return isinstance(getattr(statement, "iter", getattr(statement, "value", None)), ast.Name)


def _find_bases(value: ast.expr, *, is_of_items: bool) -> set[str]:
    """Return the names whose values, or parts of them, an expression stands for.

    Args:
        value: the expression.
        is_of_items: whether its items are meant, which a copy or a slice has, too.
    """
    match value:
        case ast.Call(func=ast.Attribute(value=inner, attr=method)) if method in _GIVING:
            return _find_bases(inner, is_of_items=is_of_items)
        case ast.Call(func=ast.Name(id=function), args=args) if is_of_items and function in _PASSING:
            return set[str]().union(*(_find_bases(each, is_of_items=True) for each in args))
        case ast.BoolOp(values=either):
            return set[str]().union(*(_find_bases(each, is_of_items=is_of_items) for each in either))
        case ast.IfExp(body=first, orelse=second):
            return _find_bases(first, is_of_items=is_of_items) | _find_bases(second, is_of_items=is_of_items)
        case ast.Attribute(value=inner):
            return _find_bases(inner, is_of_items=is_of_items)
        case ast.Subscript(value=inner, slice=index) if is_of_items or isinstance(index, ast.Constant | ast.Name):
            return _find_bases(inner, is_of_items=is_of_items)
        case ast.Name(id=name):
            return {name}
    return set()


def is_main_guard(test: ast.AST) -> bool:
    """Return whether a condition is `__name__ == "__main__"`."""
    names = ast.walk(test) if isinstance(test, ast.expr) else ()
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in names)


def _child_nodes(node: ast.AST) -> list[Any]:
    """Return the child nodes that may contain names, three times as fast as `ast.iter_child_nodes`."""
    found: list[Any] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if type(value) is list:
            found += [each for each in value if type(each) not in _WITHOUT_NAMES]
        elif type(value) not in _WITHOUT_NAMES and isinstance(value, ast.AST):
            found.append(value)
    return found


def _registry_name(decorator: ast.expr) -> str:
    """Return `area` for `@area.register` and `@area.register(Circle)`: the function becomes part of `area`."""
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return _base_name(function) if isinstance(function, ast.Attribute) and function.attr == "register" else ""


def find_called_functions(statement: ast.AST, functions: Mapping[str, Function]) -> Iterator[Function]:
    """Yield the functions of a module that one of its statements calls, as a decorator or as the whole statement."""
    for call in getattr(statement, "decorator_list", [statement.value] if isinstance(statement, ast.Expr) else []):
        function = call.func if isinstance(call, ast.Call) else call
        if isinstance(function, ast.Name) and function.id in functions:
            yield functions[function.id]


def find_called_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that statements call, as decorators, too."""
    called = [each.func for node in nodes for each in ast.walk(node) if isinstance(each, ast.Call)]
    called += [each for node in nodes for each in getattr(node, "decorator_list", ())]
    return {each.id for each in called if isinstance(each, ast.Name)}


def is_definition(statement: ast.AST) -> bool:
    """Return whether a statement defines a function or class."""
    return isinstance(statement, _DEFINITIONS)


def find_set_names(function: Function) -> tuple[set[str], set[str]]:
    """Return the names of the module that a function assigns, and those whose values it extends by one of its parameters.

    For example, `TABLE[name] = function` in a decorator makes each decorated function a part of `TABLE`.
    """
    nodes = [*ast.walk(function)]
    given = {node.arg for node in nodes if isinstance(node, ast.arg)}
    extended = set[str]()
    for node in nodes:
        if isinstance(node, ast.Assign) and _is_any_of(given, [node.value]):
            extended |= {_base_name(each) for each in node.targets if isinstance(each, ast.Subscript)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _EXTENDING:
            inner = node.func.value
            if isinstance(inner, ast.Call):  # TABLE.setdefault(name, []).append(function)
                inner = inner.func
            parts = [
                part for each in node.args for part in (each, *getattr(each, "elts", ()), *getattr(each, "values", ()))
            ]
            extended |= {_base_name(inner)} if _is_any_of(given, parts) else set()
    return {name for node in nodes if isinstance(node, ast.Global) for name in node.names}, extended - given - {""}


def is_only_fields(statement: ast.AST, name: str, fields: set[str]) -> bool:
    """Return whether a statement only declares fields in a class of this name, and sets no attribute of it.

    Settings of the class or of a field are more, as they may change what its values show: `Field(exclude=True)`.
    """
    if isinstance(statement, ast.Assign):
        return not any(isinstance(target, ast.Attribute) for target in statement.targets)
    return all(
        _has_only_keywords(_MAKING, [found, *found.decorator_list])
        and all(_is_field(each, {*fields, "__slots__"}) for each in found.body)
        for found in _find_classes(statement, name)
    )


def find_annotations(statement: ast.AST, name: str) -> list[ast.AST]:
    """Return the annotations in the classes of this name, as statements without a default."""
    return [
        ast.AnnAssign(ast.Name("_", ast.Store()), each.annotation, None, 1)
        for found in _find_classes(statement, name)
        for each in found.body
        if isinstance(each, ast.AnnAssign)
    ]


def _find_classes(statement: ast.AST, name: str) -> list[ast.ClassDef]:
    return [each for each in ast.walk(statement) if isinstance(each, ast.ClassDef) and each.name == name]


def _is_field(statement: ast.stmt, fields: set[str]) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)  # a docstring
    if isinstance(statement, ast.AnnAssign):
        return statement.value is None or (_is_any_of(fields, [statement.target]) and _is_default(statement.value))
    if isinstance(statement, ast.Assign):
        return all(_is_any_of(fields, [target]) for target in statement.targets) and _is_default(statement.value)
    return isinstance(statement, ast.Pass)


def _is_default(value: ast.expr) -> bool:
    if not isinstance(value, ast.Call) or read_dotted_name(value.func).rpartition(".")[2] not in _SPECIFIERS:
        return True
    return _has_only_keywords(_DEFAULTS, [value])


def _has_only_keywords(names: set[str], nodes: Iterable[ast.AST]) -> bool:
    return all(keyword.arg in names for node in nodes for keyword in getattr(node, "keywords", ()))


def _is_any_of(names: set[str], nodes: Iterable[ast.expr]) -> bool:
    return any(isinstance(node, ast.Name) and node.id in names for node in nodes)


def _base_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def find_functions(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the functions in nodes, but not those inside functions."""
    waiting = [*nodes]
    while waiting:
        if type(node := waiting.pop()) in _CALLABLES:
            yield node
        else:
            waiting += _child_nodes(node)


def find_lambda(lambdas: Iterable[ast.Lambda], code: CodeType, shift: int = 0) -> ast.Lambda | None:
    """Return the one of several lambdas from which a code object was compiled; None if that cannot be known.

    Args:
        lambdas: the lambdas, which begin on one line.
        code: the code object.
        shift: by how many lines the lambdas are below the lines of the code.
    """
    # A place without columns belongs to no expression.
    places = [each for each in code.co_positions() if each[0] is not None and each[3]]
    found: dict[tuple[int, int], ast.Lambda] = {}
    for node in lambdas:
        body: Any = node.body
        first, last = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
        if any(first <= (at + shift, column) and (end + shift, stop) <= last for at, end, column, stop in places):  # type: ignore[operator]
            found[first] = node
    if found:
        return found[max(found)]  # the innermost one
    # The code of a lambda that returns a constant has no columns in Python 3.12.
    return next((each for each in lambdas if _plain_constants(_compile_lambda(each)) == _plain_constants(code)), None)


def _compile_lambda(node: ast.Lambda) -> CodeType:
    made: CodeType = compile(ast.Expression(node), "", "eval")
    return [each for each in made.co_consts if isinstance(each, CodeType)][-1]  # those before it belong to its defaults


def _plain_constants(code: CodeType) -> str:
    return repr([code.co_varnames, [each for each in code.co_consts if not isinstance(each, CodeType)]])


def find_used_names(
    nodes: Iterable[ast.AST], scope: Mapping[str, Any], *, is_run: bool = False
) -> tuple[set[str], set[Import]]:
    """Return the names of the module that definitions may refer to, with their attributes, and their own imports.

    Args:
        nodes: the definitions.
        scope: the names of the module, which resolve a relative import.
        is_run: only what they read when they run themselves, not in a call of a function that they define.
    """
    used, imports = set[str](), set[Import]()
    waiting: list[tuple[Any, frozenset[str]]] = [(node, frozenset()) for node in nodes]
    while waiting:
        node, hidden = waiting.pop()
        kind = type(node)
        if kind is ast.Name:
            if node.id not in hidden and (not is_run or type(node.ctx) is ast.Load):
                used.add(node.id)
        elif kind is ast.Attribute and (dotted := read_dotted_name(node)):
            if dotted.partition(".")[0] not in hidden:
                used.add(dotted)
        elif kind in _IMPORTS:
            imports |= {target for _, target in list_bindings(node, scope)}
            if kind is ast.Import:  # `import a.b` binds `a`, whose attribute is `b`
                imports |= {Import(alias.name) for alias in node.names}
        elif kind is ast.Global:
            used |= {*node.names}
        elif kind in _CALLABLES:
            body = [node.body] if kind is ast.Lambda else node.body
            waiting += [each for each in _callable_parts(node, hidden, used) if not is_run or each[0] not in body]
        elif kind in _COMPREHENSIONS:
            waiting += _comprehension_parts(node, hidden)
        else:
            if kind is ast.AnnAssign:
                used |= _quoted_names(node.annotation)
            elif kind is ast.AugAssign and type(node.target) is ast.Name:
                used |= {node.target.id} - hidden
            waiting += [(each, hidden) for each in _child_nodes(node)]
    return used, imports


def _callable_parts(node: Any, hidden: frozenset[str], used: set[str]) -> Iterator[tuple[ast.AST, frozenset[str]]]:
    """Yield the parts of a function, each with the names that are local in it."""
    body = [node.body] if isinstance(node, ast.Lambda) else node.body
    parts = [*ast.iter_child_nodes(node.args)]
    arguments = [each for each in parts if isinstance(each, ast.arg)]
    hidden |= {each.name for each in getattr(node, "type_params", ())}
    inner = hidden | find_bound_names(body)[0] | {argument.arg for argument in arguments}
    yield from ((each, inner) for each in body)
    outer = [each for each in parts if not isinstance(each, ast.arg)]
    outer += [] if isinstance(node, ast.Lambda) else [*node.decorator_list, *getattr(node, "type_params", ())]
    yield from ((each, hidden) for each in outer)
    for annotation in (*(argument.annotation for argument in arguments), getattr(node, "returns", None)):
        if annotation is not None:
            yield annotation, hidden
            used |= _quoted_names(annotation)


def _comprehension_parts(node: Any, hidden: frozenset[str]) -> Iterator[tuple[ast.AST, frozenset[str]]]:
    first = node.generators[0].iter
    yield first, hidden
    hidden |= find_bound_names([generator.target for generator in node.generators])[0]
    parts = [each for part in node.generators for each in (part.target, part.iter, *part.ifs)]
    parts += [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    yield from ((part, hidden) for part in parts if part is not first)


def read_dotted_name(node: ast.expr) -> str:
    """Return `a.b.c` for attributes of a name; empty for attributes of another expression."""
    names = ""
    while isinstance(node, ast.Attribute):
        names = f".{node.attr}{names}"
        node = node.value
    return f"{node.id}{names}" if isinstance(node, ast.Name) else ""


def _quoted_names(annotation: ast.expr) -> set[str]:
    """Return the names in the strings of an annotation: `"Config"` refers to the class."""
    texts = [node.value for node in ast.walk(annotation) if isinstance(node, ast.Constant)]
    return {name for text in texts if isinstance(text, str) for name in re.findall(r"\w+", text)}


def imported_modules(statement: ast.Import | ast.ImportFrom, scope: Mapping[str, Any]) -> Iterator[str]:
    """Yield the full names of the modules that an import loads, including parent packages."""
    if isinstance(statement, ast.Import):
        names = [alias.name for alias in statement.names]
    else:
        names = [str(target) for _, target in list_bindings(statement, scope)]
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def is_type_checking(test: ast.AST) -> bool:
    """Return whether a condition is `TYPE_CHECKING`."""
    return isinstance(test, ast.Name | ast.Attribute) and read_dotted_name(test).rpartition(".")[2] == "TYPE_CHECKING"


def top_statements(body: Iterable[ast.stmt], guards: tuple[ast.AST, ...]) -> Iterator[tuple[ast.AST, ...]]:
    """Yield the statements of a module, each after its guards: what decides whether it runs.

    They are the conditions of the `if`s that contain it, and what a `try` tries before it, with the handled errors.
    """
    for statement in body:
        if isinstance(statement, ast.If):
            yield (*guards, test := statement.test)
            yield from top_statements(statement.body, (*guards, test))
            branches = [_count_bound(statement.body), _count_bound(statement.orelse)]
            in_both = {name for name, count in branches[0].items() if count == branches[1][name] == 1}
            for each in statement.orelse:
                bound = find_bound_names([each])[
                    0
                ]  # of a name that each branch binds once, the order tells which is which
                negated = test if bound and bound <= in_both else ast.UnaryOp(ast.Not(), test)
                yield from top_statements([each], (*guards, negated))
        elif isinstance(statement, ast.Try | ast.TryStar):
            yield from _tried_statements(statement, guards)
        else:
            yield (*guards, statement)


def _count_bound(body: Iterable[ast.stmt]) -> Counter[str]:
    return Counter(name for each in body for name in find_bound_names([each])[0])


def _tried_statements(statement: ast.Try | ast.TryStar, guards: tuple[ast.AST, ...]) -> Iterator[tuple[ast.AST, ...]]:
    imported: dict[str, set[str]] = {}
    others: list[ast.stmt] = []
    tried: list[ast.stmt] = []
    before = guards
    for each in statement.body:
        yield from top_statements([each], before)
        if isinstance(each, ast.Import | ast.ImportFrom):
            for alias in each.names:
                source = alias.name if isinstance(each, ast.Import) else str(each.module) if not each.level else "."
                imported.setdefault(source.partition(".")[0], set()).add(alias.asname or alias.name.partition(".")[0])
        elif _may_fail(each):
            others = [*others[1 - _MOST_TRIED :], each]
        tried = [*(_stand_for_import(*imported[name], package=name) for name in sorted(imported)), *others]
        before = (*guards, ast.Try(tried, [], [], [])) if tried else guards
    yield from top_statements(statement.orelse, before)
    handled: list[ast.expr] = []
    for handler in statement.handlers:
        handled.append(handler.type or ast.Name("BaseException", ast.Load()))
        guard = ast.ExceptHandler(ast.Tuple([*handled], ast.Load()), None, tried)
        yield from top_statements(handler.body, (*guards, guard))
    yield from top_statements(statement.finalbody, guards)


def _stand_for_import(*bound: str, package: str) -> ast.Expr:
    """Return what counts of tried imports: the package, not its module, and in any order; the bound names do not."""
    return ast.Expr(ast.Constant(package, kind=" ".join(sorted(bound))))  # the kind of a constant is in no text


def _may_fail(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(ast.Call(ast.Name(name) | ast.Attribute(attr=name))) if name in _TELLING:
            return False
        case ast.Assign([ast.Name()], ast.Constant()) | ast.AnnAssign(ast.Name(), _, ast.Constant() | None):
            return False
        case ast.Expr(ast.Constant()):
            return False
    return not isinstance(statement, (*_DEFINITIONS, ast.Pass))


def find_guards(nodes: tuple[ast.AST, ...], name: str) -> tuple[ast.AST, ...]:
    """Return the guards of a statement that matter for a name, without the failed import of the name itself.

    Args:
        nodes: the guards.
        name: the name.
    """
    return tuple([each for each in nodes if not _is_fallback(each, name)]) if nodes else ()


def _is_fallback(guard: ast.AST, name: str) -> bool:
    match guard:
        case ast.ExceptHandler(
            ast.Tuple([ast.Name("ImportError" | "ModuleNotFoundError")]),
            None,
            [ast.Expr(ast.Constant(kind=str(bound)))],
        ):
            return name in bound.split()
    return False


# The cells of a notebook or an `ipython` terminal, as their shell has run them.
#
# The source of a cell is what the shell compiled: the cell after its transformations, of a `%%time` cell its body. Each text
# is parsed once, with line numbers of its own, so that a function of any cell is found by its line.


_MAGICS = {"capture", "prun", "time"}
"""The magics whose text runs in the namespace of the cells."""
_FIRST_LINES = itertools.count(1 << 20, 1 << 20)


def find_shell() -> Any:
    """Return the shell of this process; None if there is none."""
    find = getattr(sys.modules.get("IPython.core.getipython"), "get_ipython", None)
    return None if find is None else find()


def list_cells(shell: Any) -> list[str]:
    """Return the texts of the cells that a shell has run, in this order."""
    return [*getattr(shell.history_manager, "input_hist_parsed", ())]


def read_cell(shell: Any, text: str) -> Iterator[ast.stmt]:
    """Yield the top-level statements of a cell, including those that a magic runs; nothing if it cannot be parsed."""
    for statement in _parse_cell(_normalize_cell(text))[1]:
        inner = _find_inner_text(statement)
        yield from (statement,) if inner is None else read_cell(shell, shell.transform_cell(inner))


def find_cell_offset(shell: Any, texts: dict[str, None], code: CodeType) -> int | None:
    """Return what the lines of a function's code are shifted by in the statements of its cell; None if no cell has it.

    Args:
        shell: the shell.
        texts: the texts that it has compiled.
        code: the code.
    """
    if lines := linecache.getlines(code.co_filename):
        text = _normalize_cell("".join(lines))
        return _parse_cell(text)[0] if text in texts else None
    found = (text for text in reversed(texts) if code in _list_codes(shell.compile, text))
    text = next(found, "")  # a magic keeps no text for its file
    return _parse_cell(text)[0] if text else None


def list_cell_texts(shell: Any) -> dict[str, None]:
    """Return the texts that a shell has compiled, the newest last: cells, and what magics in them ran."""
    found: dict[str, None] = {}
    waiting = [_normalize_cell(text) for text in reversed(list_cells(shell))]
    while waiting:
        text = waiting.pop()
        found.pop(text, None)
        found[text] = None
        inner = filter(None, map(_find_inner_text, _parse_cell(text)[1]))
        waiting += [_normalize_cell(shell.transform_cell(each)) for each in inner]
    return found


def name_change(nodes: tuple[Any, ...]) -> str:
    """Return a text that is the same for two statements if one sets again what the other has set."""
    if isinstance(nodes[-1], ast.Assign) and all(
        isinstance(each, ast.Subscript | ast.Attribute) for each in nodes[-1].targets
    ):
        nodes = (*nodes[:-1], *nodes[-1].targets)
    return format_tree([*nodes])


def _normalize_cell(text: str) -> str:
    return "\n".join(text.splitlines()).rstrip("\n")


@functools.lru_cache(maxsize=4096)
def _parse_cell(text: str) -> tuple[int, list[ast.stmt]]:
    """Return the statements of a text, and what their lines are shifted by."""
    with warnings.catch_warnings(), contextlib.suppress(SyntaxError, ValueError):
        warnings.simplefilter("ignore")  # already shown when the cell ran
        tree = ast.parse(text)
        ast.increment_lineno(tree, offset := next(_FIRST_LINES))
        return offset, tree.body
    return 0, []


def _find_inner_text(statement: ast.stmt) -> str | None:
    """Return the text that a magic runs in the namespace of the cells."""
    match statement:
        case ast.Expr(
            ast.Call(
                ast.Attribute(ast.Call(ast.Name("get_ipython")), "run_cell_magic" | "run_line_magic"),
                [ast.Constant(name), *_, ast.Constant(str(text))],
            )
        ) if name in _MAGICS:
            return text
    return None


@functools.lru_cache(maxsize=4096)
def _list_codes(compile_text: Any, text: str) -> frozenset[CodeType]:
    """Return the code of all functions of a text, which equals that of the same text under another file name."""
    found = set[CodeType]()
    with contextlib.suppress(SyntaxError, ValueError):
        waiting = [compile_text(ast.parse(text), "<cell>", "exec")]
        while waiting:
            inner = [each for each in waiting.pop().co_consts if isinstance(each, CodeType)]
            found.update(inner)
            waiting += inner
    return frozenset(found)


PATCHED_LINE = 2
"""The last line on which a function starts that a shell has compiled alone, or in a class."""
_COMPILE = functools.partial(compile, dont_inherit=True)
_FLAGS = 0xFFFF
"""The flags of code without those of `from __future__`, which a shell leaves out when it compiles a single function."""


def has_code(text: str, code: CodeType) -> bool:
    """Return whether a module's text defines a function with this code, on whatever line."""
    wanted = _strip_place(code)
    return any(each.co_name == code.co_name and _strip_place(each) == wanted for each in _list_codes(_COMPILE, text))


def _strip_place(code: CodeType) -> CodeType:
    consts = tuple(_strip_place(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    flags = code.co_flags & _FLAGS
    return code.replace(
        co_filename="", co_firstlineno=1, co_linetable=b"", co_qualname="", co_flags=flags, co_consts=consts
    )
