"""What the compile path uses of Numba's internals, one by one: a release that drops one is named.

Everything here is used in gemm/backends/compiler.py and values.py, and only there.
"""

import importlib
import importlib.util
import inspect
from pathlib import Path

import pytest

import gemm.backends

NAMES = """
numba.core.compiler            CompilerBase compile_extra Flags
numba.core.compiler_machinery  PassManager
numba.core.untyped_passes      TranslateByteCode FixupArgs IRProcessing ReconstructSSA
numba.core.typed_passes        NopythonTypeInference PreLowerStripPhis NativeLowering
numba.core.typed_passes        NoPythonBackend
numba.core.cpu                 CPUContext
numba.core.callconv            MinimalCallConv
numba.core.codegen             Codegen CodeLibrary
numba.core.typing              Context signature
numba.core.typing.templates    Registry builtin_registry _OverloadAttributeTemplate
numba.core.types               Callable Opaque Type IntegerLiteral intp unliteral none int32 float64
numba.core.datamodel           models register_default
numba.core.datamodel.models    PrimitiveModel OpaqueModel
numba.core.cgutils             alloca_once for_range get_or_insert_function
numba.cpython                  builtins numbers rangeobj tupleobj
llvmlite.binding               parse_assembly create_pass_builder create_pipeline_tuning_options
llvmlite.binding               initialize_all_targets initialize_all_asmprinters Target
"""
USED = [(line.split()[0], name) for line in NAMES.strip().splitlines() for name in line.split()[1:]]


@pytest.mark.parametrize(("module", "name"), USED)
def test_it_is_still_there(module, name):
    found = hasattr(importlib.import_module(module), name)
    assert found or importlib.util.find_spec(f"{module}.{name}"), (
        f"{module}.{name} is gone: gemm/backends/compiler.py needs another way, or numba's range "
        "in setup.cfg an upper bound"
    )


METHODS = [
    ("numba.core.cpu", "CPUContext", "init"),
    ("numba.core.cpu", "CPUContext", "codegen"),
    ("numba.core.cpu", "CPUContext", "call_conv"),
    ("numba.core.cpu", "CPUContext", "load_additional_registries"),
    ("numba.core.cpu", "CPUContext", "post_lowering"),
    ("numba.core.cpu", "CPUContext", "get_constant_generic"),
    ("numba.core.cpu", "CPUContext", "cast"),
    ("numba.core.cpu", "CPUContext", "get_function"),
    ("numba.core.cpu", "CPUContext", "call_internal"),
    ("numba.core.cpu", "CPUContext", "get_dummy_value"),
    ("numba.core.typing", "Context", "resolve_value_type"),
    ("numba.core.typing", "Context", "resolve_value_type_prefer_literal"),
    ("numba.core.typing", "Context", "load_additional_registries"),
    ("numba.core.typing", "Context", "_load_builtins"),
    ("numba.core.typing", "Context", "install_registry"),
    ("numba.core.typing", "Context", "refresh"),
    ("numba.core.codegen", "CodeLibrary", "add_ir_module"),
    ("numba.core.codegen", "CodeLibrary", "add_linking_library"),
    ("numba.core.codegen", "CodeLibrary", "finalize"),
    ("numba.core.codegen", "Codegen", "_create_empty_module"),
    ("numba.core.codegen", "Codegen", "_add_module"),
    ("numba.core.types", "Callable", "get_call_type"),
    ("numba.core.types", "Callable", "get_call_signatures"),
    ("numba.core.types", "Callable", "get_impl_key"),
]


@pytest.mark.parametrize(("module", "owner", "method"), METHODS)
def test_what_is_overridden_is_still_called_so(module, owner, method):
    """An override of a method that was renamed would silently do nothing."""
    assert hasattr(getattr(importlib.import_module(module), owner), method), f"{owner}.{method}"


def test_flags_that_are_set_exist():
    """Flags are declared options: setting an unknown one would raise, a renamed one say nothing."""
    from numba.core import compiler

    flags = compiler.Flags()
    for name in ("no_compile", "no_cpython_wrapper", "no_cfunc_wrapper", "nrt", "error_model",
                 "enable_pyobject"):  # fmt: skip
        assert hasattr(flags, name), name


def test_signatures():
    from numba.core import compiler

    parameters = list(inspect.signature(compiler.compile_extra).parameters)
    assert parameters[:7] == [
        "typingctx", "targetctx", "func", "args", "return_type", "flags", "locals",
    ]  # fmt: skip
    assert "pipeline_class" in parameters


def test_numba_is_imported_in_few_places():
    """Everything that depends on its internals stays in the compile path and the lowerings."""
    folder = Path(gemm.backends.__path__[0])
    importers = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if "from numba.core import compiler" in path.read_text() or "callconv" in path.read_text()
    }
    assert importers == {"compiler.py"}


def test_constants_of_equal_text_are_different_types():
    """A 4 x 4 tile of one vector and one of two have the same text, and were taken for another."""
    from gemm.backends.values import Constant
    from gemm.microkernels.dtypes import TileShape, float64

    one, two = TileShape(4, 1, 4, float64), TileShape(4, 2, 2, float64)
    assert repr(one) == repr(two)
    assert Constant(one) != Constant(two) and Constant(one) == Constant(TileShape(4, 1, 4, float64))
