"""Prompts: a session's facts as text, filled into the templates (``*.md``) beside these modules."""
