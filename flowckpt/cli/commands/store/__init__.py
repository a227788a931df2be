"""The commands that keep a store: `flowckpt store …`."""

from flowckpt.cli.groups import CommandGroup

command = CommandGroup("store", "Check a store, see its size, remove what is old, and keep its keys.")
