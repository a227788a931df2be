"""Does a server honour the condition that all rests upon? It is asked before the first write of a process.

Some that speak the language of S3 take `If-None-Match: *` and overwrite all the same, without a word. With those two
owners of a run would both be told that their checkpoint is saved.
"""

from __future__ import annotations

import secrets

from flowckpt.errors import CheckpointStorageError
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.stores.objects.keys import MARK


def check_conditions(bucket: Bucket) -> None:
    """Refuse a server that overwrites an object which was to be created only where there is none.

    The mark of the store is created, twice where the first time succeeds. It is there for good, so for all but the
    first process this is one request, and the server has to say no to it.

    Args:
        bucket: the bucket.

    Raises:
        CheckpointStorageError: the server does not honour the condition, or a request failed.
    """
    for _ in range(2):
        mine = b'{"flowckpt":"store","token":"%b"}\n' % secrets.token_hex(8).encode()
        found = bucket.create(MARK, mine, "", "open", is_outcome_told=False)
        if found is not None:
            return
    raise CheckpointStorageError(
        f"the server of {bucket} overwrites objects that were to be created only where there is none "
        "(If-None-Match: *), so two owners of a run could not be told apart",
        operation="open",
        remedy="Use a server that honours conditional writes: S3 itself, Ceph, MinIO, Garage; not 'rclone serve s3'.",
    )
