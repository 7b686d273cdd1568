"""What is counted over a session, as plain values: once here, for the screen, the page and the text. Imports domain alone."""
