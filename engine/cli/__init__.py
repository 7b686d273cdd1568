"""The headless face: every steering act is possible without the screen. Loads neither torch nor any model's library."""
