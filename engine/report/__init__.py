"""What a session amounts to: ``facts`` as plain values, ``text`` as lines, ``page`` as HTML and Markdown. Pure."""
