"""Code → artefact: dialects, tunables, launch plans, sandboxed compilers, the build cache, machine code inspection."""
