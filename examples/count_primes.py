"""Prime numbers counted on all processors, slice by slice: kill it and continue, or kill one of its workers.

    flowckpt run examples/count_primes.py -i limit=3000000
    flowckpt resume --last                      # after Ctrl-C, or after kill -9: only the missing slices are counted
    flowckpt run examples/count_primes.py --executor process=dask:local:2       # the same on a Dask cluster

It is a script, too: `python examples/count_primes.py 3000000`.
"""

import sys
from collections.abc import Generator
from typing import Any

from flowckpt import run_sync, step, workflow

SLICE = 20_000


def primes_in(first: int, behind: int) -> int:
    """Count the prime numbers from `first` to below `behind` with a sieve of this slice."""
    is_prime = bytearray([1]) * (behind - first)
    for factor in range(2, int(behind**0.5) + 1):
        for multiple in range(max(factor * factor, -(-first // factor) * factor), behind, factor):
            is_prime[multiple - first] = 0
    return sum(is_prime[max(2 - first, 0) :])


def count(bounds: tuple[int, int]) -> int:
    return primes_in(*bounds)


@workflow("count_primes")
def count_primes(limit: int = 400_000) -> Generator[Any, Any, int]:
    slices = [(first, min(first + SLICE, limit)) for first in range(0, limit, SLICE)]
    found = yield from step("slices").map(count, slices).on("process").retry(3).checkpoint()
    return sum(found)


if __name__ == "__main__":
    result = run_sync(count_primes, limit=int(sys.argv[1]) if len(sys.argv) > 1 else 400_000)
    print(result.unwrap())
