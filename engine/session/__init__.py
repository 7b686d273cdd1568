"""A running search: writer, live runner, replay and follow, scheduler, and the only place with effects."""
