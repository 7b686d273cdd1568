"""Exports of a session: modules, training data, bundles."""
