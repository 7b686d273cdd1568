"""Artefact → verdict: the judge, the runners and their hosts, and tools that run a kernel outside its trial."""
