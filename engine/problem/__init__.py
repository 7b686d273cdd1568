"""Problems: their files, references, workloads, operands and the generated header.

``catalog``, ``reference_code``, ``graph_ir``, ``names``, ``header`` and ``strict_toml`` never import torch. The other modules
do; only judge and host processes load them.
"""
