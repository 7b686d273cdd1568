"""Artefact → verdict: judge, runner and host as three parties, with the stopwatch and the sandbox."""
