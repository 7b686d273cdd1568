"""A search in motion: sources of one kind (live, replay, follow), the scheduler, and the one place where effects happen."""
