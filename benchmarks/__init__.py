"""The speed of flowckpt as ratios within one session: to the disk's sync, to an asyncio task, to a bare floor."""
