"""Code → artefact: dialects, tunables, launch plans, compilers in a sandbox, the cache of what they made, and its
inspection."""
