"""The page of the stores says of each what it really can do."""

import re

import pytest
from pages import DOCS

from flowckpt.stores import (
    Ability,
    FileCheckpointStore,
    MemoryCheckpointStore,
    ObjectCheckpointStore,
    SqliteCheckpointStore,
)
from flowckpt.stores.postgres import PostgresCheckpointStore

STORES = {
    "memory": MemoryCheckpointStore,
    "files": FileCheckpointStore,
    "SQLite": SqliteCheckpointStore,
    "PostgreSQL": PostgresCheckpointStore,
    "object storage": ObjectCheckpointStore,
}
ABILITIES = {ability.name: ability for ability in Ability}


def table():
    lines = [line for line in (DOCS / "reference" / "stores.md").read_text().splitlines() if line.startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return header[1:], {name: row[1:] for row in rows for name in re.findall(r"`(\w+)`", row[0]) if name in ABILITIES}


def test_all_abilities_and_stores_are_in_the_table():
    stores, rows = table()
    assert (stores, sorted(rows)) == ([*STORES], sorted(ABILITIES))


@pytest.mark.parametrize("ability", sorted(ABILITIES))
def test_the_table_says_who_has_an_ability(ability):
    said = [cell.startswith("yes") for cell in table()[1][ability]]
    assert said == [ABILITIES[ability] in store.abilities for store in STORES.values()]
