"""How a session is kept: one append-only journal, blobs beside it, nothing else."""
