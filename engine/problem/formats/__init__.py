"""Reads problems of other projects' formats, one module a format. Parses data only: no file's code runs here."""
