"""Changes to the content of an exported run, made so that the file proves itself again: its digests are computed from what it says."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from flowckpt.core.records.result import CHAIN_START
from flowckpt.maintenance.portable import Counts, end_line
from flowckpt.stores.log.sealing.keys import Key

SECRET = 'hunter2/@"%+ö'
TAGS = (
    *("$dict", "$set", "$frozenset", "$tuple", "$complex", "$int", "$path", "$datetime", "$time", "$date", "$float"),
    *("$timedelta", "$fraction", "$decimal", "$approval", "$command", "$as", "$secret", "$blob", "$bytes", "$str"),
    *("$uuid", "$error", "$enum", "$unknown"),
)
COLLIDING = [{"$int": str(number * (2**61 - 1))} for number in range(1, 3000)]
"""Integers of one hash."""


class Raw(str):
    """JSON as it is to stand in the file, also where no tree has it: keys that stand there twice, numbers that no float holds."""


def nested(depth: int, of: Any = 1) -> Any:
    for number in range(depth):
        of = {"a": of} if number % 2 else [of]
    return of


VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**53, 2**63, 2**64, -(2**63), 0.5, -0.0, 1e308, 5e-324, 10**40),
    *(
        "",
        "x",
        "0",
        "\0",
        "a\0b",
        "\x1b[31mred",
        "\u202ereversed",
        "../../etc/passwd",
        "/etc/passwd",
        "x" * 5000,
        "é",
        "$ref",
    ),
    *(
        "1",
        "null",
        "2026-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999Z",
        "0001-01-01T00:00:00Z",
        "2026-13-45T99:99:99Z",
    ),
    *("2026-01-01T00:00:00", "now", "1", "-1", "victim", "other", "one", "done", "approved", "completed", "suspended"),
    *(SECRET, SECRET.replace("/", "%2F"), "hunter2%2F%40%22%25%2B%C3%B6", json.dumps(SECRET)),
    *([], {}, [[]], {"": ""}, [None] * 50, ["a", "a"], {"a": {"a": {}}}, {"workflow_id": "victim"}),
    *({"path": "a", "attempt": 1}, {"name": "go", "value": 1}, {"approved": True, "by": "eve", "comment": ""}),
    *(nested(30), nested(240), nested(300), {"$set": COLLIDING}, {"$dict": [[each, 1] for each in COLLIDING[:50]]}),
    *(
        Raw("NaN"),
        Raw("1e999"),
        Raw("9" * 5000),
        Raw('{"a":1,"a":2}'),
        Raw("-0"),
        Raw('"\\ud800"'),
        Raw("[" * 300 + "]" * 300),
    ),
    *({tag: body} for tag in TAGS for body in (1, None, "x", [], [[1, 1]], [9**12])),
)
FORGED: dict[str, Any] = {
    "birth": "0" * 32,
    "imported": "authenticated",
    "authenticated": True,
    "waits": {
        "go": {"kind": "signal", "since": "2026-01-01T00:00:00Z", "name": "go", "due_at": "2020-01-01T00:00:00Z"}
    },
    "taken_signals": ["01ARZ3NDEKTSV4RRFFQ69G5FAV"],
    "settled": [{"step": "b", "done": True, "by": "eve", "comment": None, "at": "2026-01-01T00:00:00Z"}],
    "started_by": {"workflow_id": "victim", "path": "a", "attempt": 1},
    "forked_from": {"workflow_id": "victim", "checkpoint_id": "a"},
    "generation": 7,
    "generations": [1, 2],
    "continued_from": {"workflow_id": "victim"},
    "published": {"progress": SECRET},
    "base_path": "/etc",
    "target": {"file": "../../victim.py", "name": "w"},
    "executors": {"b": "os.system"},
    "stopped": {"by": "eve"},
    "deaths": {"count": 9, "results": 0, "paths": [], "since": "", "partial": ""},
    "limits": {"retries": 0},
    "tags": {"../x": "y"},
    "saving": {"every": 0},
    "superseded": [{"path": "a", "duration_ms": 0}],
    "started_once": {"a": 5},
    "runners": {"a": [["host", "", 1, "0"]]},
    "manager": {"head": -1, "plan": ["x"]},
    "packages": {"1": {"flowckpt": "99"}},
    "ended": {"attempt": 1, "at": "2026-01-01T00:00:00Z"},
    "cache": {"key": "victim"},
}


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a tree."""
    if path:
        yield path
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


def parent_of(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        tree = tree[key]
    return tree


def changed(document: Any, chance: random.Random, others: list[Any]) -> str:
    """Change one thing in a document; return what."""
    path = chance.choice(list(places(document)))
    holder, key = parent_of(document, path), path[-1]
    act = chance.choice(
        ("value", "value", "value", "remove", "rename", "twice", "swap", "other", "wrap", "number", "forge")
    )
    if act == "forge" and "checkpoint" in document:
        name = chance.choice(list(FORGED))
        document["checkpoint"].setdefault("metadata", {})[name] = FORGED[name]
        return f"forge {name}"
    if act == "remove":
        del holder[key]
    elif act == "rename" and isinstance(holder, dict):
        holder[chance.choice(("", "x", "\0", "$dict", "path", SECRET))] = holder.pop(key)
    elif act == "twice" and isinstance(holder, list):
        holder.append(holder[key])
    elif act == "swap":
        other = chance.choice(list(places(document)))
        value = json.loads(json.dumps(parent_of(document, other)[other[-1]]))
        holder[key] = value
    elif act == "other" and others:
        other = chance.choice(others)
        there = chance.choice(list(places(other)))
        holder[key] = json.loads(json.dumps(parent_of(other, there)[there[-1]]))
    elif act == "wrap":
        holder[key] = chance.choice(([holder[key]], {"a": holder[key]}, {chance.choice(TAGS): holder[key]}))
    elif act == "number" and isinstance(holder[key], (int, float)):
        holder[key] = chance.choice((holder[key] + 1, holder[key] - 1, -holder[key], 0, 2**53 - 1))
    else:
        holder[key] = chance.choice(VALUES)
    return f"{act} {'/'.join(map(str, path))}"[:120]


def text_of(tree: Any) -> bytes:
    """The JSON of a tree, with raw texts as they are."""
    raw: list[str] = []

    def marked(value: Any) -> Any:
        if isinstance(value, Raw):
            raw.append(value)
            return f"\ue000{len(raw) - 1}\ue001"
        if isinstance(value, dict):
            return {key: marked(each) for key, each in value.items()}
        return [*map(marked, value)] if isinstance(value, list) else value

    text = json.dumps(marked(tree), ensure_ascii=False, separators=(",", ":"))
    for number, each in enumerate(raw):
        text = text.replace(f'"\ue000{number}\ue001"', each)
    return text.encode("utf-8", "surrogatepass")


def proved(documents: list[Any], key: Key | None = None) -> bytes:
    """A file of these lines whose counts, chains and digests are those of what it says, signed with a key if one is given."""
    renamed = {}
    for document in documents:
        if (
            isinstance(document, dict)
            and isinstance(document.get("blob"), str)
            and {"size", "content"} <= document.keys()
        ):
            content = text_of(document["content"])
            old = f'"{document["blob"]}",{document["size"]}'.encode()
            renamed[old] = f'"{sha256(content).hexdigest()}",{len(content)}'.encode()
            document["blob"], document["size"] = sha256(content).hexdigest(), len(content)
    lines, chains, counts = [], [CHAIN_START], dict.fromkeys(("attempt", "checkpoint", "result", "blob"), 0)
    for document in documents:
        kind = next(iter(document), "") if isinstance(document, dict) else ""
        if kind in counts:
            counts[kind] += 1
        if kind == "attempt" and type(document.get("keeps")) is int and 0 <= document["keeps"] < len(chains):
            del chains[document["keeps"] + 1 :]
        if kind == "checkpoint" and {"results", "chain"} <= document.keys():
            document = {**document, "results": len(chains) - 1, "chain": chains[-1].hex()}
        line = text_of(document) + b"\n"
        for old, new in renamed.items():
            line = line.replace(old, new)
        if kind == "result":
            chains.append(sha256(chains[-1] + line[len(b'{"result":') : -len(b"}\n")]).digest())
        lines.append(line)
    body = b"".join(lines)
    return body + end_line(Counts(*counts.values()), sha256(body).hexdigest(), key)
