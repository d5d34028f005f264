"""gemm.perf: the performance suite (``python -m gemm.perf --help``, docs/performance.md).

Everything in this folder refers to its siblings relatively and to the measured package as ``gemm``.
So the gate can load one and the same harness beside any revision of ``gemm``, older ones included.
"""
