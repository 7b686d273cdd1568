"""A session as lines of text with a tone per part, shared by the command line, the report and the terminal UI."""
