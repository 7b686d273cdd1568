"""The fleet of a session: workers, each with a device of its own, behind one bench. No torch."""
