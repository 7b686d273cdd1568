"""The model of a search: its types, events, commands and work, the fold of the events, and the rules.

Pure: no I/O, no clock, no random numbers, no torch. Everything here is a frozen dataclass or a function.
"""
