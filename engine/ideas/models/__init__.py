"""Models that answer prompts: one adapter for each protocol, all with the interface ``model.Model``."""
