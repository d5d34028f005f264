"""CPU instruction-set levels, best first within an architecture.

flags: what the operating system must report before the level is used. Latency and ports are
those of the fused multiply-add (of multiply and add where there is none).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gemm.microkernels.selection import BlockUnit, VectorUnit


@dataclass(frozen=True)
class CPULevel:
    name: str
    architecture: str
    cpu: str
    features: str
    # Not in the text that keys kernels: it decides who may run them, and a set has no order.
    flags: frozenset[str] = field(repr=False)
    unit: VectorUnit
    fused: bool = True
    units: tuple[str, ...] = ()  # panel units of its dot products
    # Whether products of 32-bit integers are quick enough to need no halves (gemm/halves.py).
    whole_products: bool = field(default=False, repr=False)


def _flags(text: str) -> frozenset[str]:
    return frozenset(text.split())


_AVX2 = "+sse4.2,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+popcnt"
_AVX512 = _AVX2 + ",+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512cd"
# Left alone LLVM splits `vpdpwssd` into a multiplication and an addition.
_VNNI = _AVX512 + ",+avx512vnni,+fast-dpwssd"
_AVX512_FLAGS = "avx2 fma f16c bmi2 avx512f avx512bw avx512dq avx512vl"

LEVELS = (
    CPULevel(
        "amx",
        "x86_64",
        "skylake-avx512",
        _VNNI + ",+avx512bf16,+amx-tile,+amx-bf16,+amx-int8",
        _flags(_AVX512_FLAGS + " avx512_vnni avx512_bf16 amx_tile amx_bf16 amx_int8 amx_permitted"),
        VectorUnit(
            registers=32,
            bytes=64,
            latency=4,
            ports=2,
            blocks=BlockUnit(registers=8, rows=16, bytes=64, latency=52, interval=16),
        ),
        units=("int16x2", "int8x4", "bfloat16x32", "int8x64", "uint8x64"),
    ),
    CPULevel(
        "avx512_bf16",
        "x86_64",
        "skylake-avx512",
        _VNNI + ",+avx512bf16",
        _flags(_AVX512_FLAGS + " avx512_vnni avx512_bf16 fast_bf16_pairs"),
        VectorUnit(registers=32, bytes=64, latency=4, ports=2),
        units=("int16x2", "int8x4", "bfloat16x2"),
        whole_products=True,  # its machines multiply as fast as they add
    ),
    CPULevel(
        "avx512_vnni",
        "x86_64",
        "skylake-avx512",
        _VNNI,
        _flags(_AVX512_FLAGS + " avx512_vnni"),
        VectorUnit(registers=32, bytes=64, latency=4, ports=2),
        units=("int16x2", "int8x4"),
    ),
    CPULevel(
        "avx512",
        "x86_64",
        "skylake-avx512",
        _AVX512,
        _flags(_AVX512_FLAGS),
        VectorUnit(registers=32, bytes=64, latency=4, ports=2),
        units=("int16x2",),
    ),
    CPULevel(
        "avx2",
        "x86_64",
        "haswell",
        _AVX2,
        _flags("avx2 fma f16c bmi2"),
        VectorUnit(registers=16, bytes=32, latency=5, ports=2, integer_temporaries=(4, 5)),
        units=("int16x2",),
    ),
    CPULevel(
        "sse2",
        "x86_64",
        "x86-64",
        "",
        _flags("sse2"),
        VectorUnit(registers=16, bytes=16, latency=8, ports=1, temporaries=5),
        fused=False,
        units=("int16x2",),
    ),
    CPULevel(
        "neon",
        "aarch64",
        "neoverse-n1",
        "+neon",
        _flags("asimd"),
        VectorUnit(registers=32, bytes=16, latency=4, ports=2, temporaries=5),
    ),
)

# Used where the operating system tells nothing: (bytes, ways) of the L1 data, L2 and L3 caches.
FALLBACK_CACHES = ((32 << 10, 8), (256 << 10, 8), (4 << 20, 16))
CACHE_LINE = 64
