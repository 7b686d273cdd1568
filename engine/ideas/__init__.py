"""Proposers of ideas and writers of code: playbook, models, pasted replies."""
