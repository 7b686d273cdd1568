"""The terminal UI of Espalier: screens over a session. No search logic, no torch."""
