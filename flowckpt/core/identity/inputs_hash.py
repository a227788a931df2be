"""Digests of inputs, and the differences between inputs.

The canonical form is our own, because RFC 8785 refuses integers beyond 2**53 and writes 1.0 as 1: the tagged tree of
the value (`codec`), as JSON text with sorted keys, no spaces, UTF-8. Pairs of a `$dict` are sorted by the text of
their keys. It is the same in every process, on every platform, and under every `PYTHONHASHSEED`. The form has a name,
which stands in front of the digest: `sha256:v1:…`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from json import JSONEncoder
from typing import Any

from flowckpt.core.system.secret import HIDDEN, MARK

FORM = "sha256:v1:"

_canonical_text = JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True).encode

MISSING = "(missing)"


def canonical(tree: Any) -> bytes:
    """Return the canonical bytes of a tree.

    Args:
        tree: what `codec.encode` returned.
    """
    return _canonical_text(_sort_pairs(tree)).encode()


def digest(tree: Any) -> str:
    """Return the named digest of a tree: `sha256:v1:` and 64 hex digits.

    Args:
        tree: what `codec.encode` returned.
    """
    return FORM + sha256(canonical(tree)).hexdigest()


def leaves(tree: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each leaf of a tree with its place. A tagged value is one leaf; so is an empty container.

    The list of the fields that were not set in a pydantic model is one leaf, beside those of its fields.
    """
    fields = _find_fields(tree)
    if fields is not None:
        yield from leaves(fields[0], place)
        yield f"{place} (fields not set)", fields[1]
    elif isinstance(tree, dict) and tree and not _is_tag(tree):
        for key, item in tree.items():
            if key.isidentifier():
                yield from leaves(item, f"{place}.{key}" if place else key)
            else:  # {"a.b": 1} and {"a": {"b": 1}} are two places
                yield from leaves(item, f"{place}[{key!r}]")
    elif isinstance(tree, list) and tree:
        for index, item in enumerate(tree):
            yield from leaves(item, f"{place}[{index}]")
    else:
        yield place, tree


def differences(recorded: Mapping[str, Any], given: Mapping[str, Any], *, most: int = 10) -> dict[str, tuple[str, str]]:
    """Return which leaves differ, and how.

    Args:
        recorded: the trees of the recorded inputs, by name.
        given: the trees of the inputs given now.
        most: how many leaves to name.

    Returns:
        By the leaf's place, the recorded and the given value as text.
    """
    found: dict[str, tuple[str, str]] = {}
    for name in [name for name in recorded if name in given and (recorded[name] == MARK) != (given[name] == MARK)]:
        found[name] = (
            _show_beside_secret(recorded[name]),
            _show_beside_secret(given[name]),
        )  # the other may be the secret's value
    recorded = {name: tree for name, tree in recorded.items() if name not in found}
    old, new = dict(leaves(recorded)), dict(leaves({name: given[name] for name in given if name not in found}))
    for place in [*old, *(place for place in new if place not in old)]:
        if len(found) == most:
            break
        if place not in old:
            found[place] = MISSING, show(new[place])
        elif place not in new:
            found[place] = show(old[place]), MISSING
        elif canonical(old[place]) != canonical(new[place]):
            found[place] = show_both(old[place], new[place])
    return found


def keeps_all(old: Any, new: Any) -> bool:
    """Return whether a tree has each key and each item of an older one; their values may be others."""
    old, new = ((_find_fields(tree) or (tree,))[0] for tree in (old, new))
    if isinstance(old, dict):
        return isinstance(new, dict) and all(key in new and keeps_all(item, new[key]) for key, item in old.items())
    if isinstance(old, list):
        return isinstance(new, list) and len(old) <= len(new) and all(map(keeps_all, old, new))
    return True


def _find_fields(tree: Any) -> tuple[dict[str, Any], Any] | None:
    """Return the fields of a pydantic model with fields that were not set, and the names of these."""
    match tree:
        case {"$dict": [*pairs]} if len(tree) == 1 and all(
            type(pair) is list and len(pair) == 2 and type(pair[0]) is str for pair in pairs
        ):
            fields = dict(pairs)
            unset = fields.pop("$unset", None)
            if type(unset) is list and all(type(path) is list for path in unset):
                return fields, [".".join(map(str, path)) for path in unset]
    return None


def _show_beside_secret(leaf: Any) -> str:
    return show(leaf) if leaf is None or leaf == MARK else "(a value that is not a secret)"


def show_both(old: Any, new: Any) -> tuple[str, str]:
    """Return the texts of two different leaves; if they look the same, with what differs.

    That is their types, as of the path and the text `'a.csv'`, or a part that `show` cuts off.
    """
    texts, kinds = (show(old), show(new)), (_kind(old), _kind(new))
    if texts[0] != texts[1]:
        return texts
    if kinds[0] != kinds[1]:
        return f"{kinds[0]} {texts[0]}", f"{kinds[1]} {texts[1]}"
    whole = _text(old), _text(new)
    same = next((place for place, pair in enumerate(zip(*whole, strict=False)) if len({*pair}) > 1), 0)
    start = max(0, same - 20)
    return f"…{_cut(whole[0][start:])}", f"…{_cut(whole[1][start:])}"


def _kind(leaf: Any) -> str:
    return str(next(iter(leaf))[1:]) if _is_tag(leaf) else type(leaf).__name__


def show(leaf: Any) -> str:
    """Return a leaf for display: `'a.csv'`, `1000`; a tagged one by its body; cut at 80 characters."""
    if leaf == MARK:
        return HIDDEN
    return _cut(_text(leaf))


def _text(leaf: Any) -> str:
    return repr(next(iter(leaf.values())) if _is_tag(leaf) else leaf)


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}…"


def _is_tag(tree: Any) -> bool:
    return isinstance(tree, dict) and len(tree) == 1 and next(iter(tree))[:1] == "$"


def _sort_pairs(tree: Any) -> Any:
    if isinstance(tree, dict):
        if len(tree) == 1 and "$dict" in tree:
            pairs = _sort_pairs(tree["$dict"])
            if type(pairs) is not list or not all(type(pair) is list and len(pair) == 2 for pair in pairs):
                return {"$dict": pairs}  # an imported file may hold anything
            return {"$dict": sorted(pairs, key=lambda pair: _canonical_text(pair[0]))}
        return {key: _sort_pairs(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [_sort_pairs(item) for item in tree]
    return tree
