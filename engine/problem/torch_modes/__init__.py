"""How torch behaves in this process while a reference runs: modes and patches that see or change its operators."""
