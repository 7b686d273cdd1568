"""Times of calls: clocks, conditions, stopping rules, and what is plausible."""
