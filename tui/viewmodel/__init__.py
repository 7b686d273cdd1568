"""What a session looks like, as plain values: state → rows, cells and strings. Knows no terminal and no toolkit."""
