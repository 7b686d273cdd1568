"""Source → artefact: dialects, tunables, launch plans, compilers in a sandbox, and the cache of what they made.

Nothing here runs a kernel, touches a device or imports torch.
"""
