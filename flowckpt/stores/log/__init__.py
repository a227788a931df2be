"""The record log: bytes in, records out. The file store and the object store share it."""
