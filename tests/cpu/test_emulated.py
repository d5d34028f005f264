"""The kernels of a CPU that is not this one: emitted here, run under an emulator, bit for bit.

Needs Debian's qemu-user-static, gcc-aarch64-linux-gnu and libc6-dev-arm64-cross; the command is
in docs/kernels.md.
"""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from engine.oracle import ALL_LEVELS, chain, random, same_bits, tile

from gemm import plan as planning
from gemm.backends.cpu import kernels, loader
from gemm.execution import Prepared
from gemm.kernels import KernelSpec
from gemm.microkernels.dtypes import DTYPES
from gemm.planner import small_tile

LEVEL = "neon"
GCC, QEMU = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"
missing = [name for name in (GCC, QEMU) if shutil.which(name) is None]
pytestmark = [
    pytest.mark.emulated,
    pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}"),
]


def spec_of(family: str, dtype: str) -> KernelSpec:
    t = DTYPES[dtype]
    shape = tile(LEVEL, dtype) if family == "blocked" else small_tile(LEVEL, t)
    return KernelSpec(family, shape, t, t, t)


@pytest.fixture(scope="module", params=[("blocked", "float32"), ("blocked", "float64"),
                                        ("direct", "float32")])  # fmt: skip
def program(request, tmp_path_factory):
    """(path of the linked program, its kernel's spec)"""
    spec = spec_of(*request.param)
    folder = tmp_path_factory.mktemp("emulated")
    data = kernels.object_code(ALL_LEVELS[LEVEL], repr(spec), spec.build)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader.platform, "machine", lambda: "aarch64")
        assert loader.undefined_symbols(data) == []
    (folder / "kernel.o").write_bytes(data)
    driver = Path(__file__).with_name("emulated.c")
    subprocess.run(
        [GCC, "-O1", "-static", "-o", folder / "program", driver, folder / "kernel.o"], check=True
    )
    return folder / "program", spec


def emulate(program, spec, a, b, out, workers: int) -> np.ndarray:
    """out = a @ b by the emitted kernel with the smallest blocks; operands C-contiguous or
    transposed, `out` C-contiguous."""
    (m, k), n = a.shape, b.shape[1]
    shape = spec.tile
    if spec.family == "blocked":
        wide = planning.round_up(n, shape.columns)
        blocks, team = planning.Blocks(shape.rows, 4, shape.columns, wide), (1, 1, workers)
    else:
        blocks, team = planning.Blocks(shape.rows, 1, shape.columns, shape.columns), (1, 1, 1)
    # The reference target's preparation sizes the scratch and compiles nothing.
    ready = Prepared(planning.Plan("reference", spec, blocks, team), False, k)
    integers = (m, n, k, *a.strides, *b.strides, *out.strides, ready.home_rs, *ready.fixed, 1)
    table = np.array([0, 0, 0, 0, *integers, 0, *team, 0], np.int64)
    dims = np.array([1, 0, 0, 0], np.int64)
    memory = [x.tobytes("A") for x in (a, b, out)]
    counts = [*map(len, memory), ready.space, dims.nbytes, team[2]]
    problem = program.with_name("problem")
    problem.write_bytes(
        b"".join([np.array(counts, np.int64).tobytes(), table.tobytes(), *memory, dims.tobytes()])
    )
    done = subprocess.run([QEMU, program, problem], capture_output=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return np.frombuffer(done.stdout, out.dtype).reshape(out.shape)


def test_the_bits_are_the_chains(program):
    path, spec = program
    name, rows, columns = spec.a.name, spec.tile.rows, spec.tile.columns
    ran = 0
    for m in (1, rows - 1, rows + 1, 2 * rows + 1):
        for n in (1, columns - 1, columns, 2 * columns + 3):
            for k in (0, 1, 4, 9):
                a, b = random((m, k), name), random((k, n), name, 1)
                if (m + n + k) % 2 and spec.family == "blocked":
                    a, b = np.asfortranarray(a), np.asfortranarray(b)
                out = np.full((m, n), np.nan, name)
                got = emulate(path, spec, a, b, out, 1 + ran % 2)
                assert same_bits(got, chain(a, b)), (m, n, k)
                ran += 1
    assert ran == 64
