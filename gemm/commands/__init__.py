"""The commands of `python -m gemm`, one a file: `add_options(parser)` and `run(options) -> int`."""
