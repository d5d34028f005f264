"""On a GPU: every kernel family against float64, bit contracts, and the case list G01..G15."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from gemm import device
from gemm.backends import devices

pytestmark = pytest.mark.cuda
torch = pytest.importorskip("torch", reason="the GPU tests make their arrays with PyTorch")

SIZES = [(1, 1, 1), (64, 64, 64), (100, 72, 40), (129, 257, 65), (300, 1024, 96), (511, 511, 511),
         (16, 4096, 512), (1000, 999, 1001), (2048, 2304, 256)]  # fmt: skip


def mm(a, b, out=None, **options):
    return device.matmul(devices.backend_of(a), a, b, out, **options)


def random(shape, dtype, layout="n"):
    if dtype.is_complex:
        x = torch.randn(shape, device="cuda", dtype=dtype)
    elif not dtype.is_floating_point:
        x = torch.randint(-100, 100, shape, device="cuda").to(dtype)
    elif dtype == torch.float64:
        x = torch.randn(shape, device="cuda", dtype=dtype)
    else:
        x = torch.randn(shape, device="cuda").to(dtype)
    if layout == "t":
        x = x.transpose(-1, -2).contiguous().transpose(-1, -2)
    return x


def error(found, a, b):
    wide = torch.complex128 if a.dtype.is_complex else torch.float64
    want = a.to(wide) @ b.to(wide)
    assert bool(
        torch.isfinite(torch.view_as_real(found) if found.is_complex() else found.double()).all()
    )
    return float((found.to(wide) - want).abs().norm() / want.abs().norm().clamp_min(1e-300))


FAMILIES = [
    ("bfloat16", 4e-3, {}), ("float16", 6e-4, {}), ("bfloat16", 2e-6, {"dtype": "float32"}),
    ("float32", 3e-6, {}), ("float32", 1e-3, {"precision": "tf32"}),
    ("float32", 3e-6, {"precision": "tf32x3"}), ("float64", 1e-14, {}),
    ("float8_e4m3fn", 4e-3, {}), ("float8_e4m3fn", 4e-3, {"fast": True}),
    ("float8_e5m2", 4e-3, {}), ("complex64", 3e-6, {}), ("complex128", 1e-14, {}),
]  # fmt: skip


@pytest.mark.parametrize("layouts", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("name, limit, options", FAMILIES)
def test_families(name, limit, options, layouts):
    dtype = getattr(torch, name)
    for m, n, k in SIZES:
        a, b = random((m, k), dtype, layouts[0]), random((k, n), dtype, layouts[1])
        plain = not options and not name.startswith("float8")
        out = torch.full((m, n), float("nan"), device="cuda", dtype=dtype) if plain else None
        found = mm(a, b, out, **options)
        assert error(found, a, b) <= limit, (m, n, k)
        assert torch.equal(mm(a, b, **options), found), "a second call differs"


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "int32", "int64"])
def test_integers_are_exact_modulo_their_width(name):
    dtype = getattr(torch, name)
    for m, n, k in SIZES[:6]:
        a, b = random((m, k), dtype), random((k, n), dtype, "t")
        want = (a.cpu().long() @ b.cpu().long()).to(dtype)
        assert torch.equal(mm(a, b).cpu(), want)
        if name in ("int8", "uint8"):
            assert torch.equal(
                mm(a, b, dtype="int32").cpu(), (a.cpu().long() @ b.cpu().long()).int()
            )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bits_are_the_cpus(dtype):
    """The FMA chain, on lanes and on the float64 tensor cores, over every route and layout."""
    import gemm

    rng = np.random.default_rng()
    for m, n, k in [(1, 1, 1), (65, 33, 129), (257, 130, 70), (300, 512, 257), (2600, 2700, 130)]:
        a = rng.standard_normal((m, k)).astype(dtype)
        b = rng.standard_normal((k, n)).astype(dtype)
        want = gemm.matmul(a, b)
        x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
        for left in (x, x.t().contiguous().t()):
            for right in (y, y.t().contiguous().t()):
                np.testing.assert_array_equal(mm(left, right).cpu().numpy(), want)


def test_bits_do_not_depend_on_slice_or_batch():
    w, x = random((1024, 4096), torch.bfloat16), random((4096, 1024), torch.bfloat16)
    full = mm(x, w)
    for rows in (1, 16, 128, 1000):
        assert torch.equal(mm(x[:rows], w), full[:rows])
    assert torch.equal(mm(x, w[:, 8:520]), full[:, 8:520])
    a, b = random((5, 96, 200), torch.float32), random((200, 70), torch.float32)
    stack = mm(a, b)
    for i in range(5):
        assert torch.equal(mm(a[i], b), stack[i])


def test_G01_G02_G03_G04_G06_ragged_half():
    for m, k, n in [(1000, 1001, 999), (511, 511, 511), (511, 96, 1024), (1, 1, 128), (2, 3, 4)]:
        a, b = random((m, k), torch.float16), random((k, n), torch.float16)
        first = mm(a, b)
        assert error(first, a, b) < 1e-3
        assert torch.equal(first, mm(a, b))


def test_G09_G10_float32_means_float32():
    one = torch.ones(1, 1, device="cuda")
    assert mm(one * 1024.5, one).item() == 1024.5
    eye, count = torch.eye(46, device="cuda"), torch.arange(2116.0, device="cuda").view(46, 46)
    assert torch.equal(mm(eye, count), count)
    a, b = random((512, 512), torch.float32), random((512, 512), torch.float32)
    assert error(mm(a, b), a, b) < 1e-6


def test_many_blocks_of_one_stage():
    """A block leaves while the one before it is still on its way out of the same memory."""
    for m, n, k in [(100352, 64, 64), (64, 100352, 64), (30000, 192, 40)]:
        a, b = random((m, k), torch.bfloat16), random((k, n), torch.bfloat16, "t")
        assert error(mm(a, b), a, b) < 4e-3


def test_G11_batches_beyond_65535():
    for shape_a, shape_b in [((65536, 225, 4), (65536, 4, 1)), ((65537, 16, 8), (65537, 8, 16))]:
        a, b = random(shape_a, torch.float32), random(shape_b, torch.float32)
        assert error(mm(a, b), a, b) < 2e-6


def test_G12_more_than_two_billion_elements():
    a = random((8209, 512, 1), torch.float32)
    b = random((8209, 1, 512), torch.float32)
    room = torch.full((8209 * 512 * 512 + 1024,), 7.0, device="cuda")
    out = room[:-1024].view(8209, 512, 512)
    mm(a, b, out)
    for i in (0, 8191, 8208):
        assert torch.equal(out[i], a[i] * b[i])
    assert bool((room[-1024:] == 7).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_G13_bases_off_by_one_element(dtype):
    x = torch.randn(90000, device="cuda").to(dtype)
    a, b = x[1:30001].view(100, 300), x[7 : 7 + 300 * 130].view(300, 130)
    assert torch.equal(mm(a, b), mm(a.clone(), b.clone()))
    room = torch.full((100 * 130 + 2,), float("nan"), device="cuda", dtype=dtype)
    mm(a, b, room[1:-1].view(100, 130))
    assert torch.equal(room[1:-1].view(100, 130), mm(a, b))
    assert bool(room[[0, -1]].isnan().all())


def test_strides_and_broadcast():
    a = torch.randn(60, 80, device="cuda")[::2, ::3]
    b = torch.randn(54, 40, device="cuda")[::2, 1::2]
    assert error(mm(a, b), a, b) < 2e-6
    back = a.flip(0)
    assert torch.equal(mm(back, b), mm(a, b).flip(0))
    for shape_a, shape_b in [((3, 1, 64, 64), (1, 4, 64, 64)), ((2, 3, 130, 70), (70, 200)),
                             ((2, 1, 3, 1, 5, 6), (4, 1, 2, 6, 7))]:  # fmt: skip
        for dtype in (torch.float32, torch.bfloat16):
            a, b = random(shape_a, dtype), random(shape_b, dtype)
            assert error(mm(a, b), a, b) < 5e-3
    a, b = random((3, 5), torch.float32).expand(4, 3, 5), random((5, 2), torch.float32)
    assert torch.equal(mm(a, b)[2], mm(a[0], b))


def test_out_of_any_strides():
    a, b = random((30, 20), torch.float32), random((20, 30), torch.float32)
    for view in (lambda r: r[::2, ::3], lambda r: r[:30, :30].t(), lambda r: r[5:35, 7:37]):
        room = torch.full((60, 90), float("nan"), device="cuda")
        out = view(room)
        mm(a, b, out)
        assert error(out, a, b) < 2e-6
        assert int(room.isnan().sum()) == 60 * 90 - 900


def test_empty_sums_are_zero():
    out = torch.full((5, 7), float("nan"), device="cuda")
    mm(torch.randn(5, 0, device="cuda"), torch.randn(0, 7, device="cuda"), out)
    assert bool((out == 0).all())
    assert mm(torch.randn(0, 3, device="cuda"), torch.randn(3, 4, device="cuda")).shape == (0, 4)


def test_vectors():
    v, b = random((33,), torch.float32), random((33, 40), torch.float32)
    assert mm(v, b).shape == (40,) and mm(b.t(), v).shape == (40,) and mm(v, v).shape == ()
    assert torch.equal(mm(v, b), mm(v[None], b)[0])


def test_split_k_by_name():
    for m, k, parts in [(32, 65536, 64), (128, 16384, 33), (40, 1000, 3)]:
        a, b = random((m, k), torch.bfloat16), random((k, m), torch.bfloat16)
        first = mm(a, b, split_k=parts)
        assert error(first, a, b) < 4e-3
        assert torch.equal(first, mm(a, b, split_k=parts))


def test_scales():
    a, b = random((300, 256), torch.float8_e4m3fn), random((256, 400), torch.float8_e4m3fn, "t")
    x, y = torch.tensor(0.5, device="cuda"), torch.tensor(3.0, device="cuda")
    found = mm(a, b, scale_a=x, scale_b=y)
    assert error(found, a.float() * 0.5, b.float() * 3) < 4e-3


def test_G14_streams():
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    b = random((256, 256), torch.float32)
    for _ in range(50):
        with torch.cuda.stream(one):
            torch.cuda._sleep(200_000)
            a = torch.full((256, 256), 2.0, device="cuda")
            done = one.record_event()
        with torch.cuda.stream(two):
            two.wait_event(done)
            found = mm(a, b)
            again = mm(a, b)
        two.synchronize()
        assert torch.equal(found, again) and error(found, a, b) < 2e-6


def test_threads_share_a_kernel():
    a, b = random((128, 128), torch.float32), random((128, 128), torch.float32)
    want, failures = mm(a, b), []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(100):
                found = mm(a, b)
            torch.cuda.current_stream().synchronize()
            if not torch.equal(found, want):
                failures.append(1)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_G15_host_cost():
    a, b = random((64, 64), torch.float32), random((64, 64), torch.float32)
    times = []
    for _ in range(20):
        # Few enough that the queue never fills: then a call would wait for the device, which
        # other processes may hold.
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(100):
            mm(a, b)
        times.append((time.perf_counter() - start) / 100)
    torch.cuda.synchronize()
    assert min(times) < 60e-6


def test_a_new_thread_has_a_context():
    """A first call from a thread whose memory all comes from PyTorch's cache."""
    a, b, out = (random((64, 64), torch.float32) for _ in range(3))
    want, failures = mm(a, b), []
    torch.cuda.synchronize()

    def work():
        try:
            mm(a, b, out)
        except RuntimeError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert not failures and torch.equal(out, want)


def test_negated_views_are_refused():
    x = random((8, 8), torch.complex64)
    with pytest.raises(TypeError, match="resolve_neg"):
        mm(x.conj().imag, x.real.contiguous())


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
def test_programs_in_the_write_back(name):
    import gemm
    from gemm.epilogues import stock

    dtype = getattr(torch, name)
    limit = {"float32": 3e-6, "bfloat16": 8e-3, "float64": 1e-13}[name]
    for m, n, k in SIZES[1:]:
        a, b = random((m, k), dtype), random((k, n), dtype)
        residual, gamma = random((m, n), dtype), random((n,), dtype)
        program = stock.residual_rmsnorm(16)(residual=residual, gamma=gamma)
        found = gemm.matmul(a, b, epilogue=program)
        h = a.double() @ b.double() + residual.double()
        main = next(iter(found.values()))
        assert float((main.double() - h).norm() / h.norm()) <= limit, (m, n, k)
        for key, x in gemm.matmul(a, b, epilogue=program).items():
            assert torch.equal(x, found[key]), "a second call differs"
        lse = gemm.epilogue(lambda acc: {"out": acc, "lse": gemm.per_row(acc, "log_sum_exp", None),
                                         "sum": gemm.per_column(acc, "add", None)})()  # fmt: skip
        found = gemm.matmul(a, b, epilogue=lse)
        h = a.double() @ b.double()
        assert torch.allclose(found["lse"].double()[:, 0], h.logsumexp(-1), rtol=2e-2, atol=2e-2)
        assert torch.allclose(found["sum"].double()[0], h.sum(0), rtol=2e-2, atol=1e-2 * k)


def test_arrays_of_other_libraries():
    cupy = pytest.importorskip("cupy", reason="CuPy's arrays are an optional kind of operand")
    x, y = np.random.rand(40, 30).astype("f4"), np.random.rand(30, 20).astype("f4")
    found = mm(cupy.asarray(x), cupy.asarray(y))
    assert type(found) is cupy.ndarray
    np.testing.assert_allclose(found.get(), x @ y, rtol=1e-5)

    class Bare:
        """An array of no known library."""

        def __init__(self, array):
            self.array, self.__cuda_array_interface__ = array, array.__cuda_array_interface__

    other = mm(Bare(cupy.asarray(x)), Bare(cupy.asarray(y)))
    np.testing.assert_array_equal(other.copy_to_host(), found.get())


def test_refusals_name_the_numbers():
    a = torch.zeros(3, 4, device="cuda")
    with pytest.raises(ValueError, match="4 != 3"):
        mm(a, a)
    with pytest.raises(ValueError, match="precision='half'"):
        mm(a, a.t(), precision="half")
    with pytest.raises(TypeError, match="for float32 operands"):
        mm(a.half(), a.t().half(), precision="tf32")
