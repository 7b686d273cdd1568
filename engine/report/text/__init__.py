"""What a session says as lines of text with a tone for each part. The terminal, the page and the terminal UI share it."""
