"""The naive port of any reference, and the files to start a kernel from."""
