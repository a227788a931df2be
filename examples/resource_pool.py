"""Jobs that share a few machines: a crash neither loses a machine nor gives it to two jobs.

flowckpt run examples/resource_pool.py --id night -i jobs=6

A job leases a machine under its idempotency key, so that its second try after a crash finds the lease of the first.
"""

import sqlite3
from collections.abc import Generator
from contextlib import closing
from typing import Any

from flowckpt import current_step, step, workflow


def connected() -> sqlite3.Connection:
    return sqlite3.connect("pool.db", timeout=60, isolation_level=None)


def open_pool(machines: int) -> int:
    with closing(connected()) as pool:
        pool.execute("CREATE TABLE IF NOT EXISTS machines (name INTEGER PRIMARY KEY, lease TEXT UNIQUE)")
        pool.execute("CREATE TABLE IF NOT EXISTS done (job INTEGER PRIMARY KEY, result INTEGER)")
        for name in range(machines):
            pool.execute("INSERT OR IGNORE INTO machines VALUES (?, NULL)", (name,))
    return machines


def run_job(job: int) -> int:
    lease = current_step().idempotency_key
    with closing(connected()) as pool:
        if not pool.execute("SELECT 1 FROM machines WHERE lease = ?", (lease,)).fetchone():
            free = "SELECT name FROM machines WHERE lease IS NULL LIMIT 1"
            if not pool.execute(f"UPDATE machines SET lease = ? WHERE name = ({free})", (lease,)).rowcount:
                raise RuntimeError("no machine is free: more jobs run than there are machines")
        try:
            pool.execute("INSERT OR REPLACE INTO done VALUES (?, ?)", (job, job * job))
        finally:
            pool.execute("UPDATE machines SET lease = NULL WHERE lease = ?", (lease,))
    return job * job


@workflow("resource_pool")
def resource_pool(jobs: int = 6, machines: int = 2) -> Generator[Any, Any, int]:
    size = yield from step("open").python(open_pool, machines).checkpoint()
    results = yield from step("jobs").map(run_job, range(jobs), concurrency=size).checkpoint()
    return sum(results)
