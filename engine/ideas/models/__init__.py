"""Models that answer prompts: one adapter for each protocol, all of one kind (``model.Model``)."""
