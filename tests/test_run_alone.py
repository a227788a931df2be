"""A result is returned from a loop of its own without being formatted: that takes seconds for a large run."""

from __future__ import annotations

import asyncio

from flowckpt.core.system.blocking import may_block, run_alone


def test_the_result_of_a_loop_is_never_formatted():
    formatted = []

    class Result:
        def __repr__(self):
            formatted.append(self)
            return "a result"

    async def work():
        assert may_block()
        return Result()

    with asyncio.Runner() as runner:
        found = run_alone(runner, work())
    assert isinstance(found, Result) and formatted == []
