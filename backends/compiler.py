"""The one compile path: Numba types and lowers a kernel, llvmlite optimises and emits it.

    kernel (plain Python)                       gemm/, microkernels/
      -> Numba: typing and lowering             `TileTyping`, `TileContext` below
      -> LLVM IR text, one module a function    `IRLibrary`
      -> one module with a C entry, O3          `link`
      -> object code or assembly text           `Target.machine()`

Everything that depends on Numba's internals is in this file; tests/engine/test_canary.py names each
of them. Calls inside a kernel to other plain Python functions are compiled in place and inlined.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import time
import types as python_types
from dataclasses import dataclass

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import compiler, cpu, typed_passes, typing, untyped_passes
from numba.core.callconv import MinimalCallConv
from numba.core.codegen import Codegen, CodeLibrary
from numba.core.compiler_machinery import PassManager
from numba.core.types import Callable, Opaque, intp, unliteral
from numba.core.typing import signature

from gemm.microkernels import vocabulary as words

from . import lanes, values


@dataclass(frozen=True)
class Target:
    """What LLVM is told: triple, CPU name and features; `fused`: the target has fma.

    lowering: name of the module that lowers the vocabulary for this family.
    """

    name: str
    triple: str
    cpu: str
    features: str
    lowering: str
    fused: bool = True
    relocation: str = "pic"

    def machine(self):
        """llvmlite's TargetMachine for this target."""
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        return llvm.Target.from_triple(self.triple).create_target_machine(
            cpu=self.cpu, features=self.features, opt=3, reloc=self.relocation, codemodel="small"
        )


# -- Numba ---------------------------------------------------------------------------------------


class WordFunction(Callable, Opaque):
    """The Numba type of a vocabulary word."""

    def __init__(self, word, rule):
        self.word, self.rule = word, rule
        # Numba keeps one type for each name, and a target may type a word in its own way.
        super().__init__(f"word {word.__name__} {id(rule)}")

    def get_call_type(self, context, args, kws):
        result = self.rule(*args, **kws)
        return signature(result, *args)

    def get_call_signatures(self):
        return (), True

    def get_impl_key(self, sig):
        return self.word


class InlinedFunction(Callable, Opaque):
    """The Numba type of a plain Python function called from a kernel."""

    def __init__(self, function, context):
        self.function, self.context = function, context
        self.python_signature = inspect.signature(function)
        self.compiled = {}
        # Numba keeps one type for each name: a function is another one in another context.
        super().__init__(f"inlined {function.__qualname__} {id(function)} {id(context)}")

    def get_call_type(self, context, args, kws):
        bound = self.python_signature.bind(*args, **kws)
        if bound.kwargs or len(bound.args) != len(self.python_signature.parameters):
            raise TypeError(f"{self.function.__name__}: pass every argument, by position")
        args = tuple(bound.args)
        if args not in self.compiled:
            self.compiled[args] = self.context.compile_function(self.function, args)
        return signature(self.compiled[args].fndesc.restype, *args)

    def get_call_signatures(self):
        return (), True

    def get_impl_key(self, sig):
        return self.function


_CONSTANTS = (*values.CONSTANTS, python_types.FunctionType)


class TileTyping(typing.Context):
    """Numba's typing context, plus words, element types and plain functions as globals."""

    def __init__(self):
        self.target_context = None
        self._functions = {}
        super().__init__()

    def load_additional_registries(self):
        from numba.core.typing import builtins, cmathdecl, mathdecl  # noqa: F401

    def _load_builtins(self):
        if self._registries:
            return
        # Methods written as overloads would bring in Numba's own CPU target, NumPy and SciPy.
        builtin, kept = typing.templates.builtin_registry, typing.templates.Registry()
        kept.functions += builtin.functions
        kept.globals += builtin.globals
        overload = typing.templates._OverloadAttributeTemplate
        kept.attributes += [t for t in builtin.attributes if not issubclass(t, overload)]
        self.install_registry(kept)

    def resolve_value_type(self, val):
        if val is min or val is max:
            val = words.lesser if val is min else words.greater
        if isinstance(val, values.CONSTANTS):
            return values.Constant(val)
        if isinstance(val, python_types.FunctionType):
            if val not in self._functions:
                word = val in self.target_context.words
                self._functions[val] = (
                    WordFunction(val, self.target_context.words[val])
                    if word
                    else InlinedFunction(val, self.target_context)
                )
            return self._functions[val]
        return super().resolve_value_type(val)

    def resolve_value_type_prefer_literal(self, value):
        if isinstance(value, _CONSTANTS) or value is min or value is max:
            return self.resolve_value_type(value)
        return super().resolve_value_type_prefer_literal(value)


class IRLibrary(CodeLibrary):
    """Collects the IR text of a function and of those it calls; never compiles anything."""

    def __init__(self, codegen, name):
        super().__init__(codegen, name)
        self.texts: dict[str, None] = {}

    def add_ir_module(self, ir_module):
        self.texts[str(ir_module)] = None

    def add_linking_library(self, library):
        self.texts.update(library.texts)

    def finalize(self):
        self._finalized = True

    def get_function(self, name):
        raise NotImplementedError

    def get_llvm_str(self):
        return "\n".join(self.texts)

    def get_asm_str(self):
        raise NotImplementedError


class IRCodegen(Codegen):
    _library_class = IRLibrary

    def __init__(self, machine, triple):
        self._target_data = machine.target_data
        self._triple = triple
        self._library_count = 0

    def _create_empty_module(self, name):
        module = ir.Module(name)
        module.triple = self._triple
        module.data_layout = str(self._target_data)
        return module

    def _add_module(self, module):
        pass

    def magic_tuple(self):
        return (self._triple,)


class TileContext(cpu.CPUContext):
    """Numba's lowering context for one `Target`: words lower through `target.lowering`."""

    def __init__(self, typing_context, target: Target):
        import importlib

        self.machine_target = target
        self.lowering = importlib.import_module(target.lowering)
        self.words = {**values.RULES, **lanes.RULES, **getattr(self.lowering, "RULES", {})}
        super().__init__(typing_context, "cpu")
        typing_context.target_context = self

    def init(self):
        self.is32bit = False
        self._internal_codegen = IRCodegen(
            self.machine_target.machine(), self.machine_target.triple
        )

    def codegen(self):
        return self._internal_codegen

    @property
    def call_conv(self):
        return MinimalCallConv(self)

    def load_additional_registries(self):
        from numba.core import optional  # noqa: F401
        from numba.cpython import builtins, numbers, rangeobj, tupleobj  # noqa: F401

        # Numba's own installs NumPy, lists, strings...: kernels need integers and range.

    def post_lowering(self, mod, library):
        pass

    def get_constant_generic(self, builder, ty, val):
        if isinstance(ty, values.Constant | WordFunction | InlinedFunction):
            return self.get_dummy_value()
        return super().get_constant_generic(builder, ty, val)

    def cast(self, builder, val, fromty, toty):
        if isinstance(toty, Opaque) or isinstance(toty, values.Constant):
            return self.get_dummy_value()
        return super().cast(builder, val, fromty, toty)

    def get_function(self, fn, sig, _firstcall=True):
        if isinstance(fn, WordFunction):
            lower = self.lowering.LOWERINGS.get(fn.word) or lanes.LOWERINGS[fn.word]

            def call_word(builder, args, loc=None):
                result = lower(self, builder, sig, args)
                return self.get_dummy_value() if result is None else result

            return call_word
        if isinstance(fn, InlinedFunction):
            compiled = fn.compiled[sig.args]

            def call_function(builder, args, loc=None):
                self.active_code_library.add_linking_library(compiled.library)
                return self.call_internal(builder, compiled.fndesc, sig, args)

            return call_function
        return super().get_function(fn, sig, _firstcall)

    def compile_function(self, function, args):
        """Types and lowers one plain function; returns Numba's CompileResult."""
        flags = compiler.Flags()
        flags.no_compile = True
        flags.no_cpython_wrapper = True
        flags.no_cfunc_wrapper = True
        flags.nrt = False
        flags.error_model = "numpy"
        flags.enable_pyobject = False
        return compiler.compile_extra(
            self.typing_context, self, function, tuple(args), None, flags, {},
            pipeline_class=KernelPipeline,
        )  # fmt: skip


class KernelPipeline(compiler.CompilerBase):
    """Numba's passes that a kernel needs: bytecode to IR, SSA, typing, lowering."""

    def define_pipelines(self):
        pm = PassManager("kernel")
        for untyped in (
            untyped_passes.TranslateByteCode,
            untyped_passes.FixupArgs,
            untyped_passes.IRProcessing,
            untyped_passes.ReconstructSSA,
            typed_passes.NopythonTypeInference,
            typed_passes.PreLowerStripPhis,
            typed_passes.NativeLowering,
            typed_passes.NoPythonBackend,
        ):
            pm.add_pass(untyped, untyped.__doc__ or untyped.__name__)
        pm.finalize()
        return [pm]


_contexts: dict[Target, TileContext] = {}


def context_of(target: Target) -> TileContext:
    """The (cached) Numba context of a target."""
    if target not in _contexts:
        context = TileContext(TileTyping(), target)
        context.typing_context.refresh()
        context.refresh()
        _contexts[target] = context
    return _contexts[target]


# -- LLVM ----------------------------------------------------------------------------------------


def _entry(context, fndesc, argtypes, name: str, style: str, texts=()) -> str:
    """IR of the C function that calls the kernel, whose own IR is `texts`.

    style 'table': int32 name(int64 *arguments), loading each argument; 'team': int32
    name(int64 *arguments, int64 worker), the last argument from the register; 'raw': int64
    name(int64...), returning the kernel's own result.
    """
    module = ir.Module(name)
    module.triple = context.machine_target.triple
    i64 = ir.IntType(64)
    raw = style == "raw"
    parameters = [i64] * len(argtypes) if raw else [i64.as_pointer()]
    if style == "team":
        parameters.append(i64)
    result = i64 if raw else ir.IntType(32)
    function = ir.Function(module, ir.FunctionType(result, parameters), name)
    builder = ir.IRBuilder(function.append_basic_block())
    llvm_types = [context.get_value_type(t) for t in argtypes]
    arguments = []
    for index, kind in enumerate(llvm_types):
        if raw:
            value = function.args[index]
        elif style == "team" and index == len(llvm_types) - 1:
            value = function.args[1]
        else:
            value = builder.load(builder.gep(function.args[0], [ir.Constant(i64, index)]))
        if isinstance(kind, ir.PointerType):
            value = builder.inttoptr(value, kind)
        arguments.append(value)
    slot = builder.alloca(context.get_value_type(fndesc.restype))
    callee_type = ir.FunctionType(ir.IntType(32), [slot.type, *llvm_types])
    callee = ir.Function(module, callee_type, fndesc.llvm_func_name)
    # A family may have state that its kernels need set up and taken down.
    state = getattr(context.lowering, "STATE", None)
    state = state if state is not None and state.used_in(texts) else None
    if state is not None:
        state.begin(builder)
    status = builder.call(callee, [slot, *arguments])
    if state is not None:
        state.end(builder)
    builder.ret(builder.load(slot) if raw else status)
    return str(module)


_DEFINITION = re.compile(r"^(define .*\))", re.MULTILINE)


def link(texts, target: Target, machine, name: str):
    """One optimised module from IR texts in which only `name` is visible."""
    module = llvm.parse_assembly("")
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    for text in texts:
        # An edge loop must stay a loop: the object may not call the C library's memcpy.
        module.link_in(llvm.parse_assembly(_DEFINITION.sub(r'\1 "no-builtins"', text)))
    for variable in list(module.global_variables):
        if variable.name.startswith("_ZN08NumbaEnv"):
            variable.linkage = "internal"
    for function in module.functions:
        if not function.is_declaration and function.name != name:
            function.linkage = "internal"
            function.add_function_attribute("alwaysinline")
        elif not function.is_declaration:
            function.add_function_attribute("nounwind")
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.slp_vectorization = False
    options.loop_vectorization = False
    options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


def lower(function, argtypes, target: Target, name: str = "kernel", style: str = "table"):
    """The optimised LLVM module of a kernel and the machine to emit it for."""
    started = time.perf_counter()
    context = context_of(target)
    result = context.compile_function(function, argtypes)
    texts = list(result.library.texts)
    texts.append(_entry(context, result.fndesc, argtypes, name, style, texts))
    machine = target.machine()
    module = link(texts, target, machine, name)
    if os.environ.get("GEMM_VERBOSE", "0") not in ("", "0"):
        seconds = time.perf_counter() - started
        label = getattr(function, "label", function.__name__)
        print(f"gemm: compiled {label} for {target.name} in {seconds:.2f} s", file=sys.stderr)
    return module, machine


def compile_object(function, argtypes, target: Target, name="kernel", style="table") -> bytes:
    """Object code with one visible function; `style` as in `_entry`."""
    module, machine = lower(function, argtypes, target, name, style)
    return machine.emit_object(module)


def compile_assembly(function, argtypes, target: Target, name: str = "kernel") -> str:
    """The same as assembly text."""
    module, machine = lower(function, argtypes, target, name)
    return machine.emit_assembly(module)


__all__ = [
    "Target",
    "compile_assembly",
    "compile_object",
    "context_of",
    "intp",
    "lower",
    "unliteral",
]
