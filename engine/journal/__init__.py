"""Stores a session: one append-only journal and its blobs, nothing else."""
