"""Espalier's engine: everything from a reference to a measured kernel tree, with no screen attached.

Rooms, top to bottom (imports point strictly down):
``cli · session · report · trial · build · ideas · problem · journal · domain``.
"""
