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
from pathlib import Path

import pytest

from gemm import team, team_plans
from gemm.backends.cuda.compile import compile_ptx
from gemm.backends.cuda.targets import TARGETS, target_of

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
        space = team_plans.plan_space(TARGETS[name])
        step = 1 if os.environ.get("GEMM_ALL_PLANS") else 5
        for plan in space[::step]:
            yield pytest.param(name, plan, id=f"{name} {plan.label}")


_texts: dict = {}


def text_of(name, plan) -> str:
    if (name, plan) not in _texts:
        function, kinds = team.build(plan)
        _texts[name, plan] = compile_ptx(function, kinds, TARGETS[name], plan)
    return _texts[name, plan]


@pytest.mark.parametrize("name, plan", list(plans()))
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


def one(name: str, **wanted):
    """The first plan of a target's space whose tile has these attributes."""
    for plan in team_plans.plan_space(TARGETS[name]):
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
