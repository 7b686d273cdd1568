"""What is said of a search: tree, verdict, progress, summary, export. Pure: values in, lines and plain data out."""
