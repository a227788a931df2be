"""`flowckpt recover`: runs resumed in processes of their own."""
