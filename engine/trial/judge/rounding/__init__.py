"""The reference computed in other ways: what rounding alone may change in its outputs."""
