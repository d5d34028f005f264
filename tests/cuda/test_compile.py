"""Every kernel of the plan space compiles without a GPU, and its text holds what it should.

The assembler is ptxas of the wheel nvidia-cuda-nvcc (extra `test`); without it the assembling
tests are skipped. GEMM_ALL_PLANS=1 goes through every plan of every target (some minutes), else
a share of them that covers each kind.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemm import targets, team
from gemm.backends.cuda.compile import compile_ptx
from gemm.backends.cuda.targets import TARGETS, target_of
from gemm.epilogues import stock
from gemm.epilogues.program import Operand
from gemm.epilogues.run import _output_types, _program
from gemm.microkernels import dtypes as t
from gemm.microkernels.vocabulary import storage
from gemm.team import choice

ASSEMBLED = ("sm_75", "sm_80", "sm_90a", "sm_100a")


def assembler() -> str | None:
    try:
        import nvidia
    except ImportError:
        return shutil.which("ptxas")
    for root in nvidia.__path__:
        for found in sorted(Path(root).glob("*/bin/ptxas")):
            return str(found)
    return shutil.which("ptxas")


def plans():
    for name in ASSEMBLED:
        space = choice.plan_space(TARGETS[name])
        step = 1 if os.environ.get("GEMM_ALL_PLANS") else 5
        for plan in space[::step]:
            yield pytest.param(name, plan, id=f"{name} {plan.label}")


_texts: dict = {}


def text_of(name, plan) -> str:
    if (name, plan) not in _texts:
        function, kinds = team.build(plan)
        _texts[name, plan] = compile_ptx(function, kinds, TARGETS[name], plan)
    return _texts[name, plan]


def program_of(epilogue, acc, common, **operands):
    """The program of an epilogue; operands: (kind, type in memory) by name."""
    each = {key: 2 if key in epilogue.unpacked else 1 for key in operands}
    specs = tuple((key, Operand(*x, True, each[key])) for key, x in operands.items())
    key = tuple(sorted(each.items()))
    dtypes, found = _output_types(epilogue, key, acc, specs, np.dtype(storage(common)))
    wanted = tuple(
        (name, targets.element_type(np.dtype(dtypes[name] if x.dtype is None else x.dtype)), True)
        for name, x in found.items()
    )
    return _program(epilogue, key, acc, specs, wanted)


def programs():
    """(name, program of a bfloat16 product): what the block of a language model is made of."""
    bf16, f32 = t.bfloat16, t.float32
    tile, row, column = ("tile", bf16), ("row", bf16), ("column", bf16)
    yield "gelu", program_of(stock.gelu, f32, bf16, bias=row)
    yield "dropout", program_of(stock.dropout, f32, bf16, seed=("number", t.int32),
                                rate=("number", f32), bias=row, residual=tile)  # fmt: skip
    yield "norm", program_of(stock.residual_rmsnorm(128), f32, bf16, residual=tile, gamma=row)
    yield "gate", program_of(stock.swiglu, f32, bf16)
    yield "gate backward", program_of(stock.swiglu_backward(), f32, bf16, z=tile)
    yield "norm backward", program_of(stock.residual_rmsnorm_backward(), f32, bf16, gradient=tile,
                                      x=tile, r=column, s=column, gamma=row)  # fmt: skip
    yield "loss", program_of(stock.cross_entropy(128), f32, bf16, target=("column", t.int32))


def program_plans():
    """A plan for each program and target: the widest that `gemm.device` asks for."""
    for target in ("sm_80", "sm_90a", "sm_100a"):
        facts, bf16 = TARGETS[target], t.bfloat16
        for name, program in programs():
            down = any(output.kind == "column" for output in program.outputs)
            results = sum(output.kind == "tile" for output in program.outputs)
            if facts.wide:
                narrow = down or results > 1 or name == "loss"
                block, peers = (128, 128) if narrow else (128, 256), 1 if down else 2
                plan = choice.wide_plan(facts, "bfloat16", bf16, bf16, t.float32, block,
                                            peers=peers, store="rows", program=program)  # fmt: skip
            else:
                plan = choice.team_plan(
                    facts, "matrix", "bfloat16", bf16, bf16, t.float32, t.float32, ("k", "k"),
                    "async", (64, 64), (8, 8), 1, 1, 3, program=program,
                )  # fmt: skip
            yield pytest.param(target, plan, id=f"{target} {name}")


def other_program_plans():
    """Element types beside bfloat16, and the oldest target."""
    f32, f64, i32, i8, c64 = t.float32, t.float64, t.int32, t.int8, t.complex64
    hopper = TARGETS["sm_90a"]
    for name, program in (
        ("bias", program_of(stock.bias, f32, f32, bias=("row", f32))),
        ("norm", program_of(stock.residual_rmsnorm(), f32, f32, residual=("tile", f32),
                            gamma=("row", f32))),
        ("gate", program_of(stock.swiglu, f32, f32)),
    ):  # fmt: skip
        plan = choice.ring_plan(hopper, "lanes", f32, f32, ("rows", "rows"), (128, 64), (8, 8),
                                    2, 1, program=program)  # fmt: skip
        yield pytest.param("sm_90a", plan, id=f"sm_90a float32 {name}")
    for target, a, acc, program in (
        ("sm_75", f32, f32, program_of(stock.gelu, f32, f32, bias=("row", f32))),
        ("sm_86", f64, f64, program_of(stock.gelu, f64, f64, bias=("row", f64))),
        ("sm_90a", i8, i32, program_of(stock.quantise("int8"), i32, i32, scale=("number", f32))),
        ("sm_80", c64, c64, program_of(stock.alpha_beta, c64, c64, c=("tile", c64))),
    ):
        tile, lane = choice.lanes_shape(acc)
        near = ("k", "rows")
        plan = choice.team_plan(TARGETS[target], "lanes", "", a, a, acc, acc, near, "held",
                                    tile, lane, near=near, program=program)  # fmt: skip
        yield pytest.param(target, plan, id=f"{target} program on {a}")


def image_plans():
    """Plans whose A is gathered, by the copy engine and by lanes."""
    bf16, f32 = t.bfloat16, t.float32
    bias = program_of(stock.bias, f32, bf16, bias=("row", bf16))
    hopper = TARGETS["sm_90a"]
    for rank, block, peers, program in (
        (1, (64, 64), 1, None), (2, (128, 256), 2, None), (2, (128, 64), 1, bias),
        (3, (128, 128), 2, None), (2, (128, 64), 2, None), (2, (64, 128), 2, None),
    ):  # fmt: skip
        out = bf16 if program is None else f32
        plan = choice.wide_plan(hopper, "bfloat16", bf16, bf16, out, block, peers=peers,
                                program=program)  # fmt: skip
        yield pytest.param("sm_90a", replace(plan, image=rank), id=f"sm_90a {rank} {block}")
    for name in ("bfloat16", "int8"):
        plan = replace(choice.pack_plan(t.DTYPES[name], "k"), image=True)
        yield pytest.param("sm_90a", plan, id=f"sm_90a {plan.label}")
    shared = choice.wide_plan(hopper, "bfloat16", bf16, bf16, bf16, (128, 64), teams=2)
    yield pytest.param("sm_90a", replace(shared, image=2), id="sm_90a two teams (128, 64)")
    for target, unit, a, near, turned in (
        ("sm_75", "lanes", "float32", "rows", False), ("sm_80", "lanes", "float32", "k", True),
        ("sm_80", "matrix", "bfloat16", "k", False), ("sm_90a", "matrix", "float64", "rows", False),
        ("sm_100a", "lanes", "complex64", "k", False), ("sm_90a", "lanes", "bfloat16", "k", False),
        ("sm_90a", "lanes", "int8", "rows", True),
    ):  # fmt: skip
        dtype = t.DTYPES[a]
        acc = t.DTYPES[dtype.compute]
        if unit == "matrix":
            tile, lane, across, along = (64, 32), (8, 8), 2, ("k", "k")
            across = 1 if a == "float64" else across
        else:
            (tile, lane), across, along = choice.lanes_shape(acc), 1, (near, "k")
        plan = choice.team_plan(TARGETS[target], unit, a if unit == "matrix" else "", dtype, dtype,
                                dtype, acc, along, "held", tile, lane, 1, across,
                                near=(near, "k"))  # fmt: skip
        plan = replace(plan, image=2, turned=turned)
        yield pytest.param(target, plan, id=f"{target} {plan.label}")


@pytest.mark.parametrize(
    "name, plan", [*plans(), *program_plans(), *other_program_plans(), *image_plans()]
)
def test_assembles_without_spills(name, plan, tmp_path):
    if isinstance(plan, team.TeamPlan):
        assert plan.illegal() == ""
        assert plan.shared_bytes <= TARGETS[name].shared
    tool = assembler()
    if tool is None:
        pytest.skip("ptxas is not here: pip install nvidia-cuda-nvcc")
    source = tmp_path / "kernel.ptx"
    source.write_text(text_of(name, plan))
    done = subprocess.run(
        [tool, "-v", f"-arch={name}", str(source), "-o", str(tmp_path / "kernel.cubin")],
        capture_output=True, text=True,
    )  # fmt: skip
    report = done.stdout + done.stderr
    assert done.returncode == 0, report
    assert "0 bytes spill stores, 0 bytes spill loads" in report
    # ptxas warns where it has to serialise the wide unit or ignores a register claim.
    assert "warning" not in report, report
    registers = int(re.search(r"Used (\d+) registers", report)[1])
    assert registers * plan.threads * plan.teams_per_unit <= 65536


def test_a_program_rounds_every_step():
    """No product and sum of a program is fused, which would give other bits than the CPU's."""
    bf16 = t.bfloat16
    program = program_of(stock.residual, t.float32, bf16, residual=("tile", bf16))
    plan = choice.wide_plan(TARGETS["sm_90a"], "bfloat16", bf16, bf16, t.float32,
                                store="rows", program=program)  # fmt: skip
    text = text_of("sm_90a", plan)
    assert "add.rn.f32" in text and not re.search(r"\b(add|mul)\.f32|fma", text)
    assert "ld.global.b16" in text and "st.global.b16" in text, "one access an element"


def test_lanes_that_have_parted_do_not_meet():
    """An element of a program is computed where not all lanes of a warp are: nothing there waits
    for all of them, as a shuffle does."""
    f32 = t.float32
    program = program_of(stock.residual_rmsnorm(16), f32, f32, residual=("tile", f32),
                         gamma=("row", f32))  # fmt: skip
    plan = choice.team_plan(TARGETS["sm_90a"], "lanes", "", f32, f32, f32, f32, ("k", "rows"),
                            "async", (64, 64), (4, 8), near=("k", "rows"),
                            program=program)  # fmt: skip
    blocks = re.split(r"\n\$L__BB", text_of("sm_90a", plan))
    elements = [block for block in blocks if "mul.rn.f32" in block and "st.global" in block]
    assert elements and not any(".sync" in block for block in elements)


def test_the_identity_is_no_program():
    """Plans of a product with and without an identity epilogue are one."""
    program = program_of(stock.alpha_beta, t.float32, t.float32)
    assert program.is_identity


def one(name: str, **wanted):
    """The first plan of a target's space whose tile has these attributes."""
    for plan in choice.plan_space(TARGETS[name]):
        if isinstance(plan, team.TeamPlan):
            seen = {"unit": plan.tile.unit, "kind": plan.tile.kind, "route": plan.tile.a.route}
            if all(seen[k] == v for k, v in wanted.items()):
                return plan
    raise LookupError(wanted)


@pytest.mark.parametrize(
    "name, wanted, instructions",
    [
        ("sm_90a", {"unit": "wide", "kind": "bfloat16"},
         ("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16", "setmaxnreg.inc",
          "setmaxnreg.dec",
          "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast",
          "cp.async.bulk.tensor.2d.global.shared::cta", "mbarrier.try_wait.parity")),
        ("sm_90a", {"unit": "wide", "kind": "int8"}, ("m64n256k32.s32.s8.s8",)),
        ("sm_90a", {"unit": "wide", "kind": "tf32"}, ("m64n256k8.f32.tf32.tf32",)),
        ("sm_90a", {"unit": "matrix", "kind": "float64", "route": "box"},
         ("mma.sync.aligned.m16n8k16.row.col.f64", "cp.async.bulk.tensor")),
        ("sm_90a", {"unit": "lanes", "route": "box"}, ("fma.rn.f32", "ld.shared.v4.f32")),
        ("sm_80", {"unit": "matrix", "kind": "float16", "route": "async"},
         ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "ldmatrix.sync.aligned.m8n8.x4",
          "cp.async.cg.shared.global", "st.global.v4.b32")),
        ("sm_80", {"unit": "matrix", "kind": "float64", "route": "async"},
         ("mma.sync.aligned.m8n8k4.row.col.f64",)),
        ("sm_100a", {"unit": "lanes", "route": "held"}, ("fma.rn.f32",)),
    ],
)  # fmt: skip
def test_expected_instructions(name, wanted, instructions):
    text = text_of(name, one(name, **wanted))
    for instruction in instructions:
        assert instruction in text
    assert "call" not in re.sub(r"//.*", "", text), "a library function is called"


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_copy_engine_gathers_pixels(rank):
    plan = choice.wide_plan(TARGETS["sm_90a"], "bfloat16", t.bfloat16, t.bfloat16, t.bfloat16)
    text = text_of("sm_90a", replace(plan, image=rank))
    where = ", ".join([r"%r\d+"] * (rank + 2))
    taps = ", ".join([r"%rs\d+"] * rank)
    wanted = (
        (
            rf"cp\.async\.bulk\.tensor\.{rank + 2}d\.shared::cluster\.global\.im2col"
            rf"\.mbarrier::complete_tx::bytes \[%r\d+\], \[%rd\d+, {{{{{where}}}}}\], \[%r\d+\],"
            rf" {{{{{taps}}}}};"
        )
        .replace("{{", "\\{")
        .replace("}}", "\\}")
    )
    assert re.search(wanted, text)
    assert "tensor.4d.shared::cluster.global.mbarrier" in text, "filters come by (channel, tap)"


@pytest.mark.parametrize("name", list(TARGETS))
def test_the_general_kernel_exists_for_every_target(name):
    text = text_of(name, one(name, unit="lanes", route="held"))
    assert f".target {name}" in text and ".entry gemm_kernel" in text


def test_target_of_a_device():
    assert target_of(9, 0).name == "sm_90a"
    assert target_of(8, 7).name == "sm_86"
    assert target_of(12, 1).name == "sm_120"
    # 'a' targets run on their own capability alone.
    assert target_of(10, 3).name == "sm_89"
    with pytest.raises(RuntimeError, match="needs compute capability 7.5, this GPU has 7.0"):
        target_of(7, 0)


@pytest.mark.parametrize("target, plan", [*program_plans()])
def test_a_whole_chunk_moves_in_vectors(target, plan):
    """Where columns are adjacent and aligned, no element travels alone."""
    text = text_of(target, plan)
    tiles = [x for x in plan.program.operands if x.kind == "tile"]
    if tiles:
        assert re.search(r"ld\.global\.v[24]\.", text)
    if any(x.kind == "tile" for x in plan.program.outputs):
        # Two results of pairs fill one word; a statistic's single float32 is no vector.
        one = plan.program.pairs and len(plan.program.outputs) == 1
        assert re.search(r"st\.global\.b32" if one else r"st\.global\.v[24]\.", text)
