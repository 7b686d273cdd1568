"""The naive port of any reference, and the files that `espalier scaffold` writes."""
