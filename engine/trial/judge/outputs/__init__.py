"""Outputs compared with the expected ones: blocks, errors, patterns of what is wrong."""
