"""The runner's side: a warm host that forks one process per trial. This code shares a process with the kernel under test.

It imports nothing of the judge."""
