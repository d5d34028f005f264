"""The CPU's micro-kernel and packing source as GPU code, emitted without a GPU."""

import re
import shutil
import subprocess
from types import SimpleNamespace

import pytest

from gemm.microkernels.dtypes import DTYPES, TileShape
from gemm.microkernels.outer_product import make_outer_product
from gemm.microkernels.vocabulary import tile_store, tile_zeros
from gemm.packing import make_pack

from .oracle import FLOATS

TARGETS = ("sm_75", "sm_90a")
UNROLL = 4
LAUNCH = SimpleNamespace(threads=32, teams_per_unit=1, entry_registers=0, peers=1)


def emit(function, kinds, target: str) -> str:
    from gemm.backends.cuda.compile import compile_ptx
    from gemm.backends.cuda.targets import TARGETS as known

    return compile_ptx(function, kinds, known[target], LAUNCH)


def micro_kernel(shape: TileShape):
    """One lane's tile of c from packed panels a and b."""
    size = shape.dtype.size
    rows, columns = shape.rows, shape.columns
    compute = make_outer_product(UNROLL)

    def kernel(a, b, c, k):
        t = tile_zeros(shape)
        t = compute(t, a, size, rows * size, b, columns * size, columns, k)
        tile_store(c, columns * size, t, rows, columns)

    return kernel


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("target", TARGETS)
def test_the_micro_kernel(target, dtype, tmp_path):
    kind = DTYPES[dtype]
    shape = TileShape(4, 2, 2, kind)
    text = emit(micro_kernel(shape), [kind, kind, kind, "integer"], target)
    assert re.search(rf"^\.target {target}\b", text, re.MULTILINE)
    assert ".visible .entry gemm_kernel(" in text
    suffix = "f32" if dtype == "float32" else "f64"
    # The unrolled loop and the loop over what is left of k.
    assert text.count(f"fma.rn.{suffix}") == (UNROLL + 1) * shape.rows * shape.columns
    assert "call" not in text and ".extern" not in text and ".local" not in text
    assemble(text, target, tmp_path)


@pytest.mark.parametrize(("source", "wide"), [("float32", "float32"), ("float16", "float32")])
@pytest.mark.parametrize("target", TARGETS)
def test_the_packing_routine(target, source, wide, tmp_path):
    kind, acc = DTYPES[source], DTYPES[wide]
    pack = make_pack(6, 4, kind, acc)
    text = emit(pack, [acc, kind, *["integer"] * 4], target)
    assert re.search(rf"^\.target {target}\b", text, re.MULTILINE)
    # Adjacent, transposed and element by element: loads and stores of each case are there.
    assert text.count("ld.") > 6 and text.count("st.") > 6
    assert ".extern" not in text
    assemble(text, target, tmp_path)


def assemble(text: str, target: str, folder) -> None:
    """NVIDIA's assembler has the last word, where one is installed."""
    assembler = shutil.which("ptxas")
    if assembler:
        (folder / "kernel.ptx").write_text(text)
        command = [assembler, f"-arch={target}", "kernel.ptx", "-o", "kernel.cubin"]
        subprocess.run(command, cwd=folder, check=True)
