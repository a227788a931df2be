"""What a step hands in is carried by a thread: it holds nothing up, and nothing of it is lost at the end."""

from __future__ import annotations

import pickle
import threading
import time

import pytest

from flowckpt.execution.remote.channel import Uplink, UplinkClosedError


class Way:
    """A way up that is full until it is opened."""

    def __init__(self, *, is_open: bool = True, is_gone: bool = False) -> None:
        self.carried: list[object] = []
        self.is_open = threading.Event()
        self.is_gone = is_gone
        if is_open:
            self.is_open.set()

    def tell(self, message: bytes) -> None:
        assert self.is_open.wait(120)
        self.carried.append(pickle.loads(message)[1])

    def ask(self, message: bytes) -> bytes:
        if self.is_gone:
            raise ConnectionError("it is cut")
        self.carried.append(message)
        return message.upper()


def carriers() -> int:
    return sum(each.name == "flowckpt-uplink" for each in threading.enumerate())


def test_a_way_that_is_full_holds_no_step_up_and_gets_the_newest():
    way = Way(is_open=False)
    carrying = Uplink(way)
    began = time.monotonic()
    for done in range(10_000):
        carrying.tell((done, None, ""))
    assert time.monotonic() - began < 60
    way.is_open.set()
    carrying.close()
    assert way.carried[-1] == (9_999, None, "")
    assert len(way.carried) <= 3


def test_progress_is_carried_a_few_times_a_second_and_the_newest_without_another_call():
    way = Way()
    carrying = Uplink(way)
    for done in range(5):
        carrying.tell((done, 5, ""))
        time.sleep(0.002)
    until = time.monotonic() + 60
    while way.carried[-1:] != [(4, 5, "")]:
        assert time.monotonic() < until, way.carried
        time.sleep(0.005)
    assert len(way.carried) <= 2
    carrying.close()


def test_what_waits_is_carried_at_the_end_and_no_thread_is_left():
    way = Way()
    before = carriers()
    carrying = Uplink(way)
    carrying.tell((1, 2, ""))
    carrying.tell((2, 2, ""))
    assert carrying.ask(b"question") == b"QUESTION"
    carrying.close()
    assert way.carried[-1] in [(2, 2, ""), b"question"]
    assert (2, 2, "") in way.carried
    assert carriers() == before


def test_where_nothing_is_handed_in_there_is_no_thread():
    before = carriers()
    carrying = Uplink(Way())
    assert carriers() == before
    carrying.close()


def test_a_way_that_is_gone_is_an_error_for_who_asks_and_for_all_who_ask_later():
    carrying = Uplink(Way(is_gone=True))
    for _ in range(2):
        with pytest.raises(UplinkClosedError, match="it is cut"):
            carrying.ask(b"question")
    carrying.tell((1, None, ""))
    carrying.close()


def test_who_asks_when_the_step_has_ended_is_refused():
    carrying = Uplink(Way())
    carrying.close()
    carrying.tell((1, None, ""))
    with pytest.raises(UplinkClosedError, match="the step has ended"):
        carrying.ask(b"question")
