"""What is measured, as data: one readable table, and the parser a user's own shapes go through.

A line is ``family  operation  shape  dtype  [option=value ...]``; ``#`` starts a comment. A comma
in a field gives alternatives and the line stands for all their combinations.

operation
    ``matmul``; ``conv2d``; or one that takes a process of its own: ``import``, ``first-call-cold``,
    ``first-call-warm``, ``compile``, ``peak-memory`` (these measure matmul of the given shape).
shape
    matmul ``MxNxK`` (``n`` alone is ``nxnxn``); conv2d ``NxCxHxW*OxKHxKW``.
dtype
    ``A``, or ``A*B->C`` when the second operand or the output differ: ``int8*uint8->int32``.
options
    ``threads=1``, ``batch=1``, ``layout=NN`` (``T`` = transposed operand, ``S`` = every second
    element of a wider array, ``R`` = rows reversed), ``out=yes|no`` (result array given),
    ``cache=hot|memory`` (operands reused, or rotated so that they come from memory),
    ``epilogue=bias|relu|gelu|silu``, ``device=cpu|cuda``; conv2d: ``stride``, ``padding``,
    ``groups``, ``order=NCHW|NHWC``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

TABLE = """
# family    operation        shape                                  dtype                     options
square      matmul           128,256,512,1024,2048                  float32,float64           threads=1,2
square      matmul           256,512,1024                           complex64,complex128
square      matmul           512,1024                               float16,bfloat16          threads=1,2
square      matmul           512,1024                               int8->int32,uint8*int8->int32,int8*uint8->int32,uint8->int32
square      matmul           256,512                                int8,int16,int32,int64,bool
square      matmul           512                                    float8_e4m3fn->float32
small       matmul           2,4,8,16,32,64,100                     float32,float64           out=yes,no
small       matmul           8,16                                   complex128,int8,int32,int64 out=yes
batched     matmul           3                                      float64                   batch=100000 out=yes
batched     matmul           9                                      float64                   batch=10000 out=yes
batched     matmul           4,16,32                                float32                   batch=4096 out=yes
batched     matmul           64                                     float32                   batch=256 out=yes
vector      matmul           1x4096x4096,4096x1x4096                float32,float64           cache=memory out=yes
skinny      matmul           4x4096x1024,16x4096x1024,4096x8x1024   float32,float64
skinny      matmul           4096x4096x8,16x16x65536                float32
strided     matmul           1024                                   float32,float64           layout=TN,NT,TT,SN,NS,RN
transformer matmul           1x4096x4096,16x4096x4096               float32,bfloat16          cache=memory
transformer matmul           128x4096x4096,512x3072x768             float32,bfloat16          threads=1,2
transformer matmul           512x2304x768,512x768x3072              float32                   threads=1,2
epilogue    matmul           512x2048x512                           float32,bfloat16          epilogue=bias,relu,gelu,silu
resnet50    conv2d           1x3x224x224*64x7x7                     float32                   stride=2 padding=3 threads=1,2
resnet50    conv2d           1x64x56x56*64x1x1                      float32                   order=NCHW,NHWC
resnet50    conv2d           1x64x56x56*64x3x3                      float32                   padding=1 order=NCHW,NHWC threads=1,2
resnet50    conv2d           1x128x28x28*128x3x3,1x256x14x14*256x3x3 float32                   padding=1 order=NCHW,NHWC
resnet50    conv2d           1x512x7x7*512x3x3                      float32                   padding=1 order=NCHW,NHWC
resnet50    conv2d           1x256x56x56*512x1x1                    float32                   stride=2
mobilenetv2 conv2d           1x32x112x112*32x3x3                    float32                   padding=1 groups=32 order=NCHW,NHWC
mobilenetv2 conv2d           1x144x56x56*144x3x3                    float32                   stride=2 padding=1 groups=144
mobilenetv2 conv2d           1x24x56x56*144x1x1,1x960x7x7*320x1x1   float32                   order=NCHW,NHWC
gpu         matmul           1024,4096                              float32,float64,float16,bfloat16 device=cuda
gpu         matmul           4096                                   int8->int32               device=cuda
gpu         conv2d           32x64x56x56*64x3x3                     float32,bfloat16          padding=1 order=NHWC device=cuda
process     import           1                                      float32
process     first-call-warm  64                                     float32
process     first-call-cold  64                                     float32
process     compile          64                                     float64
process     peak-memory      1024                                   float32
"""  # noqa: E501

PROCESS_OPERATIONS = ("import", "first-call-cold", "first-call-warm", "compile", "peak-memory")
OPERATIONS = ("matmul", "conv2d", *PROCESS_OPERATIONS)
# Larger products would take a gate or a history too long.
LARGEST = 3e8
ITEMSIZE = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4,
    "int64": 8, "uint64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "complex64": 8, "complex128": 16, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
CHOICES = {
    "layout": {a + b for a in "NTSR" for b in "NTSR"},
    "out": {"yes", "no"},
    "cache": {"hot", "memory"},
    "device": {"cpu", "cuda"},
    "order": {"NCHW", "NHWC"},
    "epilogue": {"bias", "relu", "gelu", "silu"},
}
NUMBERS = ("threads", "batch", "stride", "padding", "groups")


class CaseError(ValueError):
    """A case that cannot be read; the message names the line, the field and what is allowed."""


@dataclass(frozen=True)
class Case:
    """One thing to measure. `shape` is (M, N, K), or (N, C, H, W, O, KH, KW) of a convolution."""

    family: str
    operation: str
    shape: tuple[int, ...]
    a: str
    b: str
    c: str
    threads: int = 1
    batch: int = 1
    layout: str = "NN"
    out: str = "no"
    cache: str = "hot"
    epilogue: str = ""
    device: str = "cpu"
    stride: int = 1
    padding: int = 0
    groups: int = 1
    order: str = "NCHW"

    @property
    def options(self) -> dict[str, object]:
        """The options that differ from their defaults."""
        return {
            key: getattr(self, key)
            for key in (*NUMBERS, *CHOICES)
            if getattr(self, key) != getattr(Case, key)
        }

    @property
    def dtype(self) -> str:
        """The dtype field as it is written in the table."""
        operands = self.a if self.a == self.b else f"{self.a}*{self.b}"
        return operands if self.c == self.a else f"{operands}->{self.c}"

    @property
    def widest(self) -> str:
        """The operands' wider type, whose multiply-adds bound the case's speed."""
        return max((self.a, self.b), key=lambda name: ITEMSIZE[name])

    @property
    def size(self) -> str:
        """The shape field as it is written in the table."""
        dims = "x".join(map(str, self.shape[:4]))
        return dims if len(self.shape) == 3 else dims + "*" + "x".join(map(str, self.shape[4:]))

    @property
    def line(self) -> str:
        """The case as one table line: `parse(case.line) == [case]`."""
        fields = [self.family, self.operation, self.size, self.dtype]
        return " ".join(fields + [f"{k}={v}" for k, v in self.options.items()])

    @property
    def name(self) -> str:
        """A short unique name for tables and for `--match`."""
        options = [f"{k}={v}" for k, v in self.options.items()]
        return "/".join([self.family, self.operation, self.size, self.dtype, *options])

    @property
    def unit(self) -> str:
        """Unit of the measured quantity; less is better for both."""
        return "B" if self.operation == "peak-memory" else "s"

    @property
    def output_hw(self) -> tuple[int, int]:
        """Height and width of a convolution's output."""
        _, _, h, w, _, kh, kw = self.shape
        pad, stride = 2 * self.padding, self.stride
        return (h + pad - kh) // stride + 1, (w + pad - kw) // stride + 1

    @property
    def flops(self) -> int:
        """Real multiplications and additions; a complex multiply-add counts 8."""
        if self.operation == "conv2d":
            n, c, _, _, o, kh, kw = self.shape
            count = 2 * n * math.prod(self.output_hw) * o * (c // self.groups) * kh * kw
        else:
            count = 2 * math.prod(self.shape) * self.batch
        return count * (4 if self.a.startswith("complex") else 1)

    @property
    def bytes(self) -> int:
        """Least memory traffic: each operand read once, the result written once."""
        if self.operation == "conv2d":
            n, c, h, w, o, kh, kw = self.shape
            sizes = (
                n * c * h * w,
                o * (c // self.groups) * kh * kw,
                n * o * math.prod(self.output_hw),
            )
        else:
            m, n, k = self.shape
            sizes = self.batch * m * k, self.batch * k * n, self.batch * m * n
        return sum(s * ITEMSIZE[t] for s, t in zip(sizes, (self.a, self.b, self.c), strict=True))

    def tiny(self) -> Case:
        """The same kind of case at a size that CI can afford."""
        if self.operation == "conv2d":
            n, c, h, w, o, kh, kw = self.shape
            groups = min(self.groups, 4)
            c, o = (groups, groups) if self.groups > 1 else (min(c, 8), min(o, 8))
            shape = (min(n, 1), c, min(h, 9), min(w, 9), o, min(kh, 3), min(kw, 3))
            return replace(self, shape=shape, groups=groups, padding=min(self.padding, 1))
        return replace(
            self, shape=tuple(min(d, 24) for d in self.shape), batch=min(self.batch, 8), cache="hot"
        )


def _dtypes(text: str) -> tuple[str, str, str]:
    operands, _, c = text.partition("->")
    a, _, b = operands.partition("*")
    names = (a, b or a, c or a)
    for name in names:
        if name not in ITEMSIZE:
            raise CaseError(f"dtype {name!r} is none of {', '.join(ITEMSIZE)}")
    return names


def _shape(operation: str, text: str) -> tuple[int, ...]:
    form = "NxCxHxW*OxKHxKW" if operation == "conv2d" else "MxNxK or n"
    try:
        parts = [tuple(int(d) for d in part.split("x")) for part in text.split("*")]
    except ValueError:
        raise CaseError(f"shape {text!r} is not of the form {form}") from None
    if operation != "conv2d" and len(parts) == 1 and len(parts[0]) == 1:
        parts = [parts[0] * 3]
    if [len(p) for p in parts] != ([4, 3] if operation == "conv2d" else [3]):
        raise CaseError(f"shape {text!r} is not of the form {form}")
    shape = tuple(itertools.chain(*parts))
    if min(shape) < 1:
        raise CaseError(f"shape {text!r} has a dimension below 1")
    return shape


def _one(family: str, operation: str, shape: str, dtype: str, options: dict[str, str]) -> Case:
    if operation not in OPERATIONS:
        raise CaseError(f"operation {operation!r} is none of {', '.join(OPERATIONS)}")
    values: dict[str, object] = {}
    for key, value in options.items():
        if key in NUMBERS:
            if not value.isdigit() or (int(value) < 1 and key != "padding"):
                raise CaseError(f"{key}={value} is not a whole number that {key} can be")
            values[key] = int(value)
        elif value in CHOICES.get(key, ()):
            values[key] = value
        elif key in CHOICES:
            raise CaseError(f"{key}={value}: {key} is one of {', '.join(sorted(CHOICES[key]))}")
        else:
            raise CaseError(f"option {key!r} is none of {', '.join((*NUMBERS, *CHOICES))}")
    case = Case(family, operation, _shape(operation, shape), *_dtypes(dtype), **values)  # type: ignore[arg-type]
    if operation == "conv2d":
        c, o = case.shape[1], case.shape[4]
        if c % case.groups or o % case.groups:
            raise CaseError(f"groups={case.groups} divides not both C={c} and O={o}")
        if min(case.output_hw) < 1:
            raise CaseError(f"kernel of {case.size} with padding={case.padding} exceeds the image")
    return case


def _expand(line: str) -> Iterator[Case]:
    fields = line.split()
    if len(fields) < 4:
        raise CaseError("a case needs at least: family operation shape dtype")
    pairs = [field.partition("=") for field in fields[4:]]
    if any(not sign for _, sign, _ in pairs):
        raise CaseError("what follows the dtype is option=value")
    alternatives = [f.split(",") for f in fields[1:4]] + [value.split(",") for _, _, value in pairs]
    for operation, shape, dtype, *values in itertools.product(*alternatives):
        keys = [key for key, _, _ in pairs]
        yield _one(fields[0], operation, shape, dtype, dict(zip(keys, values, strict=True)))


def parse(text: str, source: str = "table") -> list[Case]:
    """Read cases from table text; raises `CaseError` naming `source` and the line number."""
    cases: dict[str, Case] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        try:
            cases.update((case.name, case) for case in (_expand(line) if line else ()))
        except CaseError as error:
            raise CaseError(f"{source}, line {number}: {error}") from None
    return list(cases.values())


def read(path: str | Path) -> list[Case]:
    """Read a user's file of cases (same lines as the table above)."""
    return parse(Path(path).read_text(encoding="utf-8"), str(path))


def select(
    cases: Iterable[Case],
    families: Iterable[str] = (),
    match: str = "",
    threads: Iterable[int] = (),
) -> list[Case]:
    """Keep the cases of these families, with `match` in their name and with these thread counts."""
    families, threads = set(families), set(threads)
    return [
        case
        for case in cases
        if (not families or case.family in families)
        and match in case.name
        and (not threads or case.threads in threads or case.operation in PROCESS_OPERATIONS)
    ]


def affordable(cases: Iterable[Case]) -> list[Case]:
    """The cases of gates and histories: on the CPU, some milliseconds each."""
    return [
        case
        for case in cases
        if case.operation in PROCESS_OPERATIONS or (case.flops <= LARGEST and case.device == "cpu")
    ]
