"""What the engine keeps of a judge's work for later sessions."""
