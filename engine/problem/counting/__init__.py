"""What a traced forward does: operations, bytes, allocations and comparisons."""
