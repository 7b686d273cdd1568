"""Figures of a session as plain values, computed once for the screen, the page and the text. Imports only ``domain``."""
