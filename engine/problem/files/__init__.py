"""The text of a problem: its digest, its settings, and static analysis of its code. Runs nothing, no torch."""
