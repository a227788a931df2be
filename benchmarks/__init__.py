"""How fast flowckpt is, as ratios within one run: to the disk's own sync, to a task of the loop, to a bare floor."""
