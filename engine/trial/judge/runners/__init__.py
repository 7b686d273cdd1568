"""The judge's side of hosts and runners, and of the memory that runners write."""
