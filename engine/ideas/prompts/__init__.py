"""Prompts: the session's facts in words, filled into the templates (``*.md``) beside these modules."""
