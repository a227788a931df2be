"""A transfer between two accounts: no crash loses money or moves it twice.

flowckpt run examples/money_transfer.py --id rent
flowckpt run examples/money_transfer.py --id typo -i target=nobody   # the deposit fails: the money goes back

Each move happens at most once. After a crash in the middle of one, its row in the ledger decides whether it happened.
"""

import sqlite3
from collections.abc import Generator
from contextlib import closing
from typing import Any

from flowckpt import Step, step, workflow
from flowckpt.errors import StepFailedError
from flowckpt.evidence import db_row

ACCOUNTS = ("ann", "bob")


def move(transfer: str, account: str, amount: int) -> int:
    with closing(sqlite3.connect("bank.db")) as bank, bank:
        bank.execute("CREATE TABLE IF NOT EXISTS ledger (transfer TEXT, account TEXT, amount INTEGER)")
        if account not in ACCOUNTS:
            raise LookupError(f"there is no account {account!r}")
        bank.execute("INSERT INTO ledger VALUES (?, ?, ?)", (transfer, account, amount))
    return amount


def once(name: str, transfer: str, account: str, amount: int) -> Step[int]:
    row = {"transfer": transfer, "account": account, "amount": amount}
    moved = step(name).python(move, transfer, account, amount).at_most_once()
    return moved.evidence(db_row("bank.db", "ledger", row)).checkpoint()


@workflow("money_transfer")
def money_transfer(
    transfer: str = "t-1", source: str = "ann", target: str = "bob", amount: int = 250
) -> Generator[Any, Any, str]:
    yield once("withdraw", transfer, source, -amount)
    try:
        yield once("deposit", transfer, target, amount)
    except StepFailedError as error:
        yield once("refund", transfer, source, amount)
        return f"returned: {error.error_message}"
    return "done"
