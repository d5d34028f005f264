"""Products of device arrays: call -> problem -> plan -> launches on the caller's stream.

A call's shapes, steps, types and alignments are its signature; what was decided for a signature
(plans, grids, argument tables) is kept, so that a repeated call only fills in addresses.
"""

from __future__ import annotations

from gemm.microkernels.dtypes import DTYPES

from .batches import any_result
from .shapes import batch_shape, broadcast, merged, result_type
from .signature import PRECISIONS, Matrix, Signature, unit_name

KEPT_SIGNATURES = 512


_prepared: dict[tuple, tuple] = {}


def matmul(backend, a, b, out=None, *, dtype=None, precision=None, split_k=None, scale_a=None,
           scale_b=None, fast=False):  # fmt: skip
    """a @ b of device arrays, NumPy's shapes and broadcasting, on the caller's current stream.

    out: device array of the result's shape, any strides, not overlapping a or b; dtype: name of
    the result's element type (default: a's, bfloat16 for 8-bit floats). precision: None (float32
    means float32), 'tf32' or 'tf32x3'. split_k: number of slices of K, summed in order. scale_a,
    scale_b: one-element float32 device arrays that multiply the result; fast: 8-bit floats
    accumulate in the matrix unit alone. TypeError, ValueError: before anything is launched.
    """
    address_a, address_b, key, producers = backend.glance(a, b)
    if dtype or precision or split_k or fast or scale_a is not None:
        key = (key, dtype, precision, split_k, fast, scale_a is None)
    address_c = 0
    if out is not None:
        address_c, _, key_c, more = backend.glance(out, out)
        key, producers = (key, key_c), producers + more
    found = _prepared.get(key)
    if found is None:
        found = _decide(
            backend, backend.view(a), backend.view(b), None if out is None else backend.view(out),
            dtype, precision, split_k, scale_a, scale_b, fast,
        )  # fmt: skip
        found = (*found, None if out is not None else backend.maker(a, found[0], found[1]))
        if len(_prepared) >= KEPT_SIGNATURES:
            _prepared.clear()
        _prepared[key] = found
    shape, result, run, device, make = found
    if result.kind == "c":
        backend.refuse_conjugates(a, b)
    if out is None:
        out, address_c = make() if make is not None else backend.empty(a, shape, result)
    stream = backend.enter(a, device)
    for producer in producers:
        if producer != stream:
            device.wait(stream, producer)
    if run is None:
        return out
    if scale_a is None:
        run(address_a, address_b, address_c, stream, 0, 0)
    else:
        run(address_a, address_b, address_c, stream, *backend.glance(scale_a, scale_b)[:2])
    return out


def matmul_of_host(backend, a, b, out=None, **options):
    """a @ b of host arrays on the default device: copied in, multiplied, copied out.

    out: ndarray of the result's shape and type; options as in `matmul`.
    """
    import numpy as np

    found = matmul(backend, backend.upload(a), backend.upload(b), **options).copy_to_host()
    if out is None:
        return found
    if out.shape != found.shape or out.dtype != found.dtype:
        raise ValueError(
            f"out is {out.dtype} {out.shape}, the result is {found.dtype} {found.shape}"
        )
    np.copyto(out, found)
    return out


def _decide(backend, va, vb, vo, dtype, precision, split_k, scale_a, scale_b, fast):
    """(shape, element type, run or None, device) of a call; every refusal is here."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r}: expected one of {PRECISIONS}")
    if not va.shape or not vb.shape:
        raise ValueError("matmul takes no scalars: operands need one dimension at least")
    promoted = result_type(va.dtype, vb.dtype)
    if precision and promoted.name != "float32":
        raise TypeError(f"precision={precision!r} is for float32 operands, not {promoted}")
    if (scale_a is None) != (scale_b is None):
        raise ValueError("give scale_a and scale_b together")
    if dtype is not None:
        result = DTYPES.get(str(dtype))
        if result is None:
            raise TypeError(f"dtype={dtype!r}: expected one of {', '.join(DTYPES)}")
    elif vo is not None:
        result = vo.dtype
    else:
        result = DTYPES["bfloat16"] if promoted.name.startswith("float8") else promoted
    if (result.kind in "fc") != (promoted.kind in "fc") or (promoted.kind == "c") > (
        result.kind == "c"
    ):
        raise TypeError(f"a product of {promoted} cannot be stored as {result}")
    a2 = va if len(va.shape) > 1 else va._replace(shape=(1, *va.shape), strides=(0, *va.strides))
    b2 = vb if len(vb.shape) > 1 else vb._replace(shape=(*vb.shape, 1), strides=(*vb.strides, 0))
    (m, k), (kb, n) = a2.shape[-2:], b2.shape[-2:]
    if k != kb:
        raise ValueError(f"inner dimensions differ: {va.shape} @ {vb.shape} ({k} != {kb})")
    batch = batch_shape(a2.shape[:-2], b2.shape[:-2])
    shape = batch + ((m,) if len(va.shape) > 1 else ()) + ((n,) if len(vb.shape) > 1 else ())
    if vo is not None and vo.shape != shape:
        raise ValueError(f"out has shape {vo.shape}, the result has {shape}")
    if vo is not None and vo.dtype != result:
        raise TypeError(f"out has element type {vo.dtype}, the result has {result}")
    if va.device != vb.device or (vo is not None and vo.device != va.device):
        raise ValueError("operands and out must be on one device")
    device = backend.device(va.device)
    if scale_a is not None and unit_name(device.target, va.dtype, precision) != "wide":
        raise ValueError("scales need 8- or 16-bit floats on a machine with the wide matrix unit")
    size = result.size
    if vo is None:
        c_steps, step = [], size
        for extent in reversed(batch + (m, n)):
            c_steps.append(step)
            step *= max(extent, 1)
        c_steps.reverse()
        c_address = 0
    else:
        c_steps = list(vo.strides)
        if len(va.shape) == 1:
            c_steps.insert(len(batch), size)
        if len(vb.shape) == 1:
            c_steps.append(size)
        c_address = vo.address
    for v, name in ((va, "a"), (vb, "b"), (vo, "out")):
        if v is not None and (
            v.address % v.dtype.real.size or any(s % v.dtype.real.size for s in v.strides)
        ):
            raise ValueError(f"{name} is not aligned to its {v.dtype.real.size}-byte elements")
    if 0 in shape:
        return shape, result, None, device
    rows = merged(batch, broadcast(batch, a2), broadcast(batch, b2), c_steps[:-2])
    a = Matrix(m, k, a2.strides[-2], a2.strides[-1], va.dtype, va.address % 16 == 0)
    b = Matrix(n, k, b2.strides[-1], b2.strides[-2], vb.dtype, vb.address % 16 == 0)
    s = Signature(a, b, result, c_steps[-2], c_address % 16 == 0, rows, precision, fast,
                  scale_a is not None)  # fmt: skip
    run = any_result(backend, device, s, c_steps[-1], split_k)
    return shape, result, run, device
