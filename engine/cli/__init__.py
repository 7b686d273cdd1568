"""The command line: every command, and what commands share. Loads neither torch nor a model's library."""
