"""Running untrusted programs: bubblewrap namespaces, system-call filters, resource limits, child processes."""
