"""Reports of a session: ``facts`` as plain values, ``text`` as lines, ``page`` as HTML and Markdown. Pure."""
