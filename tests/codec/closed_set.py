"""Values of the closed set as Hypothesis strategies, and what "comes back the same" means for them."""

from __future__ import annotations

import struct
import zoneinfo
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from uuid import UUID

from hypothesis import strategies as st

ZONES = [z for z in ("Europe/Berlin", "America/New_York", "Asia/Kathmandu") if z in zoneinfo.available_timezones()]

any_text = st.text(st.characters(exclude_categories=()), max_size=8)  # lone surrogates too
dollar_text = st.sampled_from(["$", "$tuple", "$dict", "$as", "$blob", "$x"])
integers = st.one_of(
    st.integers(),
    st.sampled_from([-(2**63) - 1, -(2**63), 2**53 + 1, 2**63, 2**64 - 1, 2**64, 10**400, -(10**4000)]),
)
offsets = st.builds(
    lambda seconds, micros: timedelta(seconds=seconds, microseconds=micros),
    st.integers(-86_000, 86_000),
    st.sampled_from([0, 0, 1, 999_999]),
)
fixed_zones = st.one_of(
    st.just(UTC),
    offsets.map(timezone),
    st.builds(timezone, offsets, st.sampled_from(["CET", "Mitteleuropäische Zeit", "UTC"])),
)
zones = st.one_of(st.none(), fixed_zones, *([st.sampled_from(ZONES).map(zoneinfo.ZoneInfo)] if ZONES else []))
folds = st.sampled_from([0, 1])
datetimes = st.builds(lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold), st.datetimes(), zones, folds)
times = st.builds(lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold), st.times(), zones, folds)
paths = st.text(st.characters(exclude_categories=(), exclude_characters="\0"), max_size=8).map(Path)

SCALARS = {
    type(None): st.none(),
    bool: st.booleans(),
    int: integers,
    float: st.floats(),
    str: any_text | dollar_text,
    bytes: st.binary(max_size=8),
    complex: st.complex_numbers(),
    date: st.dates(),
    time: times,
    datetime: datetimes,
    timedelta: st.timedeltas(),
    Decimal: st.decimals(allow_nan=False)
    | st.sampled_from(["NaN", "NaN123", "-NaN", "-0", "1E+10", "1E-400", "Infinity"]).map(Decimal),
    Fraction: st.fractions(),
    UUID: st.uuids(),
    type(Path()): paths,
}
scalars = st.one_of(*SCALARS.values())
unhashable_scalars = st.sampled_from([Decimal("sNaN"), Decimal("-sNaN7")])
hashables = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3).map(tuple), st.frozensets(inner, max_size=3)),
    max_leaves=4,
)
values = st.recursive(
    st.one_of(scalars, unhashable_scalars),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(any_text, inner, max_size=4),
        st.dictionaries(dollar_text, inner, min_size=1, max_size=2),
        st.dictionaries(hashables, inner, max_size=3),
        st.sets(hashables, max_size=3),
        st.frozensets(hashables, max_size=3),
    ),
    max_leaves=10,
)


def same(a: object, b: object) -> bool:
    """Whether two values are the same in value and in type, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b) or (a != a and b != b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, Decimal):
        return a.as_tuple() == b.as_tuple()
    if isinstance(a, datetime | time):
        return (
            a.replace(tzinfo=None) == b.replace(tzinfo=None)
            and a.fold == b.fold
            and type(a.tzinfo) is type(b.tzinfo)
            and repr(a.tzinfo) == repr(b.tzinfo)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(map(same, a, b)) and all(map(same, a.values(), b.values()))
    if isinstance(a, set | frozenset):
        rest = list(b)
        for item in a:
            found = next((i for i, other in enumerate(rest) if same(item, other)), None)
            if found is None:
                return False
            rest.pop(found)
        return not rest
    return a == b
