"""The terminal face of Espalier: screens over a session, no search logic, and never torch."""
