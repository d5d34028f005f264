"""The cases of gemm.perf as an asv suite: see benchmarks.py and docs/performance.md."""
