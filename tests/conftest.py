"""Every test shares one folder of compiled kernels, in pytest's own cache and not in a home.

Entries are keyed by content, so the folder may stay from run to run.
"""

import os

# What a user may have set and what would change which kernel runs.
STEERING = ("GEMM_ISA", "GEMM_DOOR", "GEMM_NUM_THREADS", "GEMM_VERBOSE", "GEMM_CACHE_MIB")


def pytest_configure(config):
    folder = config.cache.mkdir("gemm-kernels")
    folder.chmod(0o700)
    os.environ["GEMM_CACHE_DIR"] = str(folder)
    for name in STEERING:
        os.environ.pop(name, None)
