"""Checkpoints in object storage: S3 and what speaks its language, and what else the library `obstore` can reach."""

from flowckpt.stores.objects.store import ObjectCheckpointStore

__all__ = ["ObjectCheckpointStore"]
