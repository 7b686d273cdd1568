"""Problems: their references, workloads, operands and the generated header.

``catalog``, ``chance_holdout``, ``graph_ir``, ``names``, ``header`` and the folders ``files`` and ``formats`` never import
torch. The others do; only judge and host processes load them.
"""
