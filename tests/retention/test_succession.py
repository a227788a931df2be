"""Which segments of a run count. Pure: numbers, and what each segment says, in."""

from __future__ import annotations

import pytest

from flowckpt.stores.log.image import select_segments
from flowckpt.stores.log.segment import Cut

PACK = True, None
FIRST = True, None


def counted(segments):
    return [*select_segments(sorted(segments), segments.__getitem__)]


@pytest.mark.parametrize("seen", [None, (9, 70)], ids=["unsaid", "seen"])
def test_a_pack_that_a_later_segment_goes_on_from_is_the_end(seen):
    end = None if seen is None else 70
    assert counted({1: FIRST, 6: (True, Cut(1)), 9: PACK, 10: (True, Cut(9, seen=seen))}) == [(10, None), (9, end)]


@pytest.mark.parametrize("seen", [None, (6, 70)], ids=["unsaid", "seen"])
def test_a_pack_that_a_thief_has_not_seen_is_passed_by(seen):
    end = None if seen is None else 70
    found = counted({1: FIRST, 6: (True, Cut(1, seen=None)), 9: PACK, 10: (True, Cut(6, seen=seen))})
    assert found == [(10, None), (6, end), (1, None)]


def test_whoever_goes_back_behind_all_that_a_pack_holds_has_seen_it():
    assert counted({1: FIRST, 9: PACK, 10: (True, Cut(0, seen=(9, 0)))}) == [(10, None), (9, 0)]


def test_a_claim_without_a_record_says_nothing():
    assert counted({1: FIRST, 9: PACK, 10: (False, None)}) == [(9, None)]
