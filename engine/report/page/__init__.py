"""A session's report as a page: content as values, rendered as HTML and as Markdown."""
