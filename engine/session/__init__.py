"""A search in motion: the writer, the live runner, replay and follow, the scheduler, and the one place where effects happen."""
