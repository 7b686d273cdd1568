"""What the screens show, as plain values: state → rows, cells and strings. Imports no terminal toolkit."""
