"""What is asked: finding problems, reading references, operands, workloads and the generated header.

``catalog``, ``source``, ``names`` and ``header`` never import torch; ``loading``, ``reference``, ``census`` and the
helpers they share do, and are loaded by judge and host processes only.
"""
