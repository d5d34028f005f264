"""Who is timed: gemm and the peers that are installed, each behind the same three questions.

A contender has a `name`, says whether it is `available()`, and `make`s a case ready: the calls to
time, one an operand set, and the result as a NumPy array for the check. `NotAvailable` carries the
reason into the table; nothing is skipped in silence and nothing is made up.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import fused
from .cases import Case
from .operands import Array, Operands, numpy_dtype
from .reference import bias
from .timing import Timed


class NotAvailable(Exception):
    """The contender cannot do this case here; the message is the reason."""


@dataclass
class Prepared:
    """A case made ready: `timed` for the clock, `result()` the product of operand set 0."""

    timed: Timed
    result: Callable[[], Array]


def _need(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotAvailable(f"{module} is not installed ({error})") from None


def _partials(function: Callable, sets: Sequence[Operands], **keywords: object) -> list[Callable]:
    """One ready call an operand set, with `out` where the case gives it."""
    return [
        functools.partial(function, s.a, s.b, **keywords)
        if s.out is None
        else functools.partial(function, s.a, s.b, out=s.out, **keywords)
        for s in sets
    ]


def _on_host(calls: Sequence[Callable]) -> Prepared:
    return Prepared(Timed(calls), lambda: np.asarray(calls[0]()))


class Contender:
    """Base of all: a library told apart by its import name."""

    name = ""
    module = ""

    def available(self) -> bool:
        """Is the library installed? (Nothing is imported.)"""
        return importlib.util.find_spec(self.module) is not None

    def make(self, case: Case, sets: Sequence[Operands]) -> Prepared:
        """Ready the case or raise `NotAvailable`."""
        raise NotImplementedError

    def _plain(self, case: Case) -> None:
        if case.device != "cpu":
            raise NotAvailable(f"{self.name} does not run on {case.device}")
        if case.operation != "matmul" or case.epilogue:
            raise NotAvailable(f"{self.name} has no {case.epilogue or case.operation} in one call")


# Images and results channels last, filters as every library has them: (O, I, KH, KW).
NHWC = ("NHWC", "OIHW", "NHWC")


class Gemm(Contender):
    """The measured package. `matmul` may be injected, for tests."""

    name = "gemm"
    module = "gemm"

    def __init__(self, matmul: Callable | None = None):
        self._matmul = matmul

    def make(self, case: Case, sets: Sequence[Operands]) -> Prepared:
        try:
            prepared = self._make(case, sets)
            prepared.timed.warm_up()
        except (AttributeError, NotImplementedError, TypeError, ImportError) as error:
            raise NotAvailable(f"{type(error).__name__}: {error}") from None
        return prepared

    def _make(self, case: Case, sets: Sequence[Operands]) -> Prepared:
        gemm = importlib.import_module("gemm")
        matmul = self._matmul or gemm.matmul
        if hasattr(gemm, "set_num_threads"):
            gemm.set_num_threads(case.threads)
        elif case.threads > 1:
            raise NotAvailable("this gemm runs one thread")
        if case.device != "cpu":
            return _on_torch_device(case, sets, matmul, getattr(gemm, "conv2d", None))
        if case.operation == "conv2d":
            return self._convolution(case, sets, gemm.conv2d)
        keywords: dict[str, object] = {}
        if case.c != case.a:
            keywords["dtype"] = numpy_dtype(case.c)
        if case.epilogue:
            keywords["epilogue"] = fused.define(gemm)[case.epilogue](bias=bias(case))
        return _on_host(_partials(matmul, sets, **keywords))

    def _convolution(self, case: Case, sets: Sequence[Operands], conv2d: Callable) -> Prepared:
        geometry = {"stride": case.stride, "padding": case.padding, "groups": case.groups}
        if case.order == "NHWC":
            images = [np.ascontiguousarray(s.a.transpose(0, 2, 3, 1)) for s in sets]
            call = [
                functools.partial(conv2d, x, s.b, layout=NHWC, **geometry)
                for x, s in zip(images, sets, strict=True)
            ]
            return Prepared(Timed(call), lambda: np.asarray(call[0]()).transpose(0, 3, 1, 2))
        return _on_host([functools.partial(conv2d, s.a, s.b, **geometry) for s in sets])


class NumPy(Contender):
    """numpy.matmul: OpenBLAS for the four BLAS types, plain loops for the others."""

    name = "NumPy"
    module = "numpy"

    def make(self, case: Case, sets: Sequence[Operands]) -> Prepared:
        self._plain(case)
        keywords = {} if case.c == case.a else {"dtype": numpy_dtype(case.c)}
        return _on_host(_partials(np.matmul, sets, **keywords))


class SciPyBLAS(Contender):
    """scipy.linalg.blas.?gemm on Fortran-ordered views, as a careful user calls it."""

    name = "SciPy BLAS"
    module = "scipy"

    def make(self, case: Case, sets: Sequence[Operands]) -> Prepared:
        self._plain(case)
        letter = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}.get(
            case.dtype
        )
        if letter is None or case.batch > 1 or set(case.layout) - set("NT"):
            raise NotAvailable("BLAS has no such dtype, batch or layout")
        function = getattr(_need("scipy.linalg.blas"), f"{letter}gemm")

        # C' = B' A' on the transposed (Fortran-ordered) views: no copy on either side.
        def call(s: Operands) -> Callable:
            b, tb = (s.b, 1) if case.layout[1] == "T" else (s.b.T, 0)
            a, ta = (s.a, 1) if case.layout[0] == "T" else (s.a.T, 0)
            if s.out is None:
                return functools.partial(function, 1.0, b, a, trans_a=tb, trans_b=ta)
            return functools.partial(
                function, 1.0, b, a, 0.0, s.out.T, trans_a=tb, trans_b=ta, overwrite_c=1
            )

        calls = [call(s) for s in sets]
        return Prepared(Timed(calls), lambda: calls[0]().T)


class Blis(Contender):
    """The `blis` wheel (one thread, float32 and float64)."""

    name = "blis"
    module = "blis"

    def make(self, case: Case, sets: Sequence[Operands]) -> Prepared:
        self._plain(case)
        if case.dtype not in ("float32", "float64") or case.batch > 1 or case.layout != "NN":
            raise NotAvailable("the blis wheel has no such dtype, batch or layout")
        if case.threads > 1:
            raise NotAvailable("the blis wheel runs one thread")
        function = _need("blis.py").gemm
        calls = [
            functools.partial(function, s.a, s.b)
            if s.out is None
            else functools.partial(function, s.a, s.b, out=s.out, beta=0.0)
            for s in sets
        ]
        return _on_host(calls)


class Torch(Contender):
    """PyTorch: oneDNN or MKL on a CPU, cuBLAS and cuDNN on a GPU."""

    name = "PyTorch"
    module = "torch"

    def make(self, case: Case, sets: Sequence[Operands]) -> Prepared:
        torch = _need("torch")
        torch.set_num_threads(case.threads)
        torch.set_grad_enabled(False)
        if case.device != "cpu":
            return _on_torch_device(case, sets, torch.matmul, torch.nn.functional.conv2d)
        if case.operation == "conv2d":
            return self._convolution(torch, case, sets)
        if case.c != case.a or case.b != case.a:
            if (case.a, case.b, case.c) != ("int8", "int8", "int32"):
                raise NotAvailable(f"PyTorch has no {case.dtype} product")
            return self._calls(torch, case, sets, torch._int_mm)
        if case.epilogue:
            return self._calls(torch, case, sets, self._fused(torch, case))
        return self._calls(torch, case, sets, torch.matmul)

    @staticmethod
    def _fused(torch: Any, case: Case) -> Callable:
        functional = torch.nn.functional
        after = {
            "bias": None,
            "relu": torch.relu_,
            "gelu": functional.gelu,
            "silu": functional.silu,
        }
        row, activation = to_torch(torch, bias(case)), after[case.epilogue]
        if activation is None:
            return functools.partial(torch.addmm, row)
        return lambda a, b: activation(torch.addmm(row, a, b))

    @staticmethod
    def _calls(torch: Any, case: Case, sets: Sequence[Operands], function: Callable) -> Prepared:
        if "R" in case.layout:
            raise NotAvailable("PyTorch has no negative strides")
        calls = []
        for s in sets:
            a, b = to_torch(torch, s.a), to_torch(torch, s.b)
            keywords = {} if s.out is None else {"out": to_torch(torch, s.out)}
            calls.append(functools.partial(function, a, b, **keywords))
        try:
            calls[0]()
        except RuntimeError as error:
            raise NotAvailable(f"PyTorch: {str(error).splitlines()[0]}") from None
        return Prepared(Timed(calls), lambda: to_numpy(torch, calls[0]()))

    @staticmethod
    def _convolution(torch: Any, case: Case, sets: Sequence[Operands]) -> Prepared:
        order = torch.channels_last if case.order == "NHWC" else torch.contiguous_format
        geometry = {"stride": case.stride, "padding": case.padding, "groups": case.groups}
        calls = [
            functools.partial(
                torch.nn.functional.conv2d,
                to_torch(torch, s.a).contiguous(memory_format=order),
                to_torch(torch, s.b).contiguous(memory_format=order),
                **geometry,
            )
            for s in sets
        ]
        return Prepared(Timed(calls), lambda: to_numpy(torch, calls[0]()))


class OnnxRuntime(Contender):
    """onnxruntime's CPU provider, for convolutions (NCHW)."""

    name = "onnxruntime"
    module = "onnxruntime"

    def make(self, case: Case, sets: Sequence[Operands]) -> Prepared:
        if case.operation != "conv2d" or case.order != "NCHW" or case.device != "cpu":
            raise NotAvailable("onnxruntime is asked for NCHW convolutions on the CPU only")
        runtime, onnx = _need("onnxruntime"), _need("onnx")
        _need("onnx.helper")
        element = getattr(onnx.TensorProto, {"float32": "FLOAT", "float64": "DOUBLE"}[case.a])
        node = onnx.helper.make_node(
            "Conv", ["x", "w"], ["y"], strides=[case.stride] * 2, pads=[case.padding] * 4,
            group=case.groups,
        )  # fmt: skip
        info = onnx.helper.make_tensor_value_info
        weights = onnx.numpy_helper.from_array(sets[0].b, "w")
        graph = onnx.helper.make_graph(
            [node],
            "conv",
            [info("x", element, sets[0].a.shape)],
            [info("y", element, None)],
            [weights],
        )
        opset = [onnx.helper.make_opsetid("", 17)]
        model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = case.threads, 1
        session = runtime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        calls = [functools.partial(session.run, ["y"], {"x": s.a}) for s in sets]
        return Prepared(Timed(calls), lambda: calls[0]()[0])


class CuPy(Contender):
    """CuPy: cuBLAS."""

    name = "CuPy"
    module = "cupy"

    def make(self, case: Case, sets: Sequence[Operands]) -> Prepared:
        if case.device != "cuda" or case.operation != "matmul" or case.c != case.a:
            raise NotAvailable("CuPy is asked for products on the GPU only")
        cupy = _need("cupy")
        try:
            calls = [
                functools.partial(cupy.matmul, cupy.asarray(s.a), cupy.asarray(s.b)) for s in sets
            ]
        except Exception as error:  # no device, driver too old, dtype unknown: all say why
            raise NotAvailable(f"CuPy: {str(error).splitlines()[0]}") from None
        timed = Timed(calls, case.device, cupy.cuda.get_current_stream().synchronize)
        return Prepared(timed, lambda: cupy.asnumpy(calls[0]()))


def to_torch(torch: Any, array: Array) -> Any:
    """A tensor on the array's memory; the ml_dtypes go over as bits."""
    kind = array.dtype.name
    if kind.startswith(("bfloat", "float8")):
        bits = np.dtype(f"i{array.dtype.itemsize}")
        return torch.from_numpy(array.view(bits)).view(getattr(torch, kind))
    return torch.from_numpy(array)


def to_numpy(torch: Any, tensor: Any) -> Array:
    """The tensor as a NumPy array in host memory."""
    tensor = tensor.cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
    return tensor.numpy()


def _on_torch_device(
    case: Case, sets: Sequence[Operands], matmul: Callable, conv2d: Callable | None
) -> Prepared:
    """Operands as CUDA tensors: what PyTorch multiplies itself and what gemm takes as they are."""
    torch = _need("torch")
    if not torch.cuda.is_available():
        raise NotAvailable("no CUDA device in this machine")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    conv = case.operation == "conv2d"
    if case.c != case.a and matmul is torch.matmul:
        matmul = torch._int_mm
    geometry = {"stride": case.stride, "padding": case.padding, "groups": case.groups}
    order = torch.channels_last if case.order == "NHWC" else torch.contiguous_format
    calls = []
    for s in sets:
        a, b = (to_torch(torch, x).to(case.device) for x in (s.a, s.b))
        if conv:
            if conv2d is None:
                raise NotAvailable("gemm.conv2d is not there")
            a, b = (x.contiguous(memory_format=order) for x in (a, b))
        function = functools.partial(conv2d, **geometry) if conv and conv2d else matmul
        calls.append(functools.partial(function, a, b))
    timed = Timed(calls, case.device, torch.cuda.synchronize)
    return Prepared(timed, lambda: to_numpy(torch, calls[0]()))


PEERS: tuple[Contender, ...] = (NumPy(), SciPyBLAS(), Torch(), Blis(), OnnxRuntime(), CuPy())
ALL: tuple[Contender, ...] = (Gemm(), *PEERS)
