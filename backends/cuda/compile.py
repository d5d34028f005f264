"""A team kernel as PTX text: the shared compile path with a kernel entry of its own."""

from __future__ import annotations

from llvmlite import ir
from numba.core import types

from gemm.microkernels.dtypes import DType, int64
from gemm.microkernels.pixels import MAP_BYTES, RULE_BYTES

from .. import compiler, values
from ..team_values import Box, Image
from .targets import CudaTarget

NAME = "gemm_kernel"


def numba_type(kind):
    """Numba's type of a kernel argument, and the bytes it passes by value (8: one register).

    kind: a DType (pointer to its elements), 'integer', 'box2' or 'box4' (tensor map of so many
    axes), 'image2' (one that gathers over so many, with its rule) or 'table128' (16 integers, seen
    as a pointer).
    """
    if isinstance(kind, DType):
        return values.Pointer(kind), 8
    if kind.startswith("table"):
        return values.Pointer(int64), int(kind.removeprefix("table"))
    if kind.startswith("image"):
        return Image(int(kind[5:])), MAP_BYTES + RULE_BYTES
    if kind.startswith("box"):
        return Box(int(kind[3:])), 128
    return types.intp, 8


def entry(context, fndesc, kinds, plan) -> str:
    """IR of the kernel entry, which passes its parameters on to the compiled function.

    Tables and tensor maps are passed by value, in the kernel's parameter space.
    """
    parameters, arguments = [], []
    for i, (ty, size) in enumerate(map(numba_type, kinds)):
        llvm_type = context.get_value_type(ty)
        text = "ptr" if isinstance(llvm_type, ir.PointerType) else str(llvm_type)
        arguments.append(f"{text} %p{i}")
        if size > 8:
            text += f' byval([{size} x i8]) align 64 "nvvm.grid_constant"'
        parameters.append(f"{text} %p{i}")
    attributes = {"nvvm.maxntid": plan.threads, "nvvm.minctasm": plan.teams_per_unit}
    if plan.entry_registers:
        attributes["nvvm.maxnreg"] = plan.entry_registers
    if plan.peers > 1:
        attributes["nvvm.cluster_dim"] = plan.peers
    listed = " ".join(f'"{k}"="{v}"' for k, v in attributes.items())
    result = context.get_value_type(fndesc.restype)
    result_text = "ptr" if isinstance(result, ir.PointerType) else str(result)
    callee = '@"' + fndesc.llvm_func_name + '"'
    declared = ", ".join(a.split()[0] for a in arguments)
    return f"""
target triple = "{context.machine_target.triple}"
declare i32 {callee}(ptr, {declared})
define ptx_kernel void @{NAME}({", ".join(parameters)}) #0 {{
  %slot = alloca {result_text}
  %status = call i32 {callee}(ptr %slot, {", ".join(arguments)})
  ret void
}}
attributes #0 = {{ nounwind {listed} }}
"""


def compile_ptx(function, kinds, target: CudaTarget, plan) -> str:
    """PTX of a plain-Python kernel.

    plan: threads, peers, teams_per_unit and entry_registers (0: the assembler decides) of the
    launch it is made for.
    """
    described = target.compiler
    context = compiler.context_of(described)
    result = context.compile_function(function, [numba_type(k)[0] for k in kinds])
    machine = described.machine()
    texts = [*result.library.texts, entry(context, result.fndesc, kinds, plan)]
    module = compiler.link(texts, described, machine, NAME)
    return machine.emit_assembly(module)
