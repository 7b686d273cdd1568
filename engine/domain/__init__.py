"""What a search *is*: words, events, commands, work, the fold and the rules.

Pure: no I/O, no clock, no random numbers, no torch. Everything here is a frozen dataclass or a function.
"""
