"""PyTorch's module inputs on our layers: ``pytest tests/suites/torch_modules.py``.

For each input of ``torch.testing``'s module database the layer of PyTorch and ours are made with
the same arguments and state; forward, gradients and second gradients must agree.
"""

import pytest

torch = pytest.importorskip("torch")

from torch.testing._internal.common_modules import module_db  # noqa: E402

import gemm.torch  # noqa: E402
from gemm.torch.conversion import PAIRS  # noqa: E402

INFOS = {info.module_cls: info for info in module_db}
LAYERS = sorted(PAIRS, key=lambda cls: cls.__name__)


def _inputs(cls, dtype, requires_grad=True):
    torch.manual_seed(0)
    info = INFOS[cls]
    return info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=requires_grad, training=True
    )


def _pair(cls, constructor, dtype):
    theirs = cls(*constructor.args, **constructor.kwargs).to(dtype)
    ours = PAIRS[cls](*constructor.args, **constructor.kwargs).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def _values(forward):
    return [*forward.args, *forward.kwargs.values()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize("cls", LAYERS, ids=lambda cls: cls.__name__)
def test_forward_and_gradients(cls, dtype):
    count = 0
    for given in _inputs(cls, dtype):
        ours, theirs = _pair(cls, given.constructor_input, dtype)
        inputs = _values(given.forward_input)
        x = inputs[0]
        try:
            wanted = theirs(*inputs)
        except (RuntimeError, NotImplementedError):
            continue  # a padding mode that PyTorch does not have for this dtype
        got = ours(*inputs)
        torch.testing.assert_close(got, wanted)
        assert got.stride() == wanted.stride()
        g = torch.randn_like(wanted)
        parameters = zip(ours.parameters(), theirs.parameters(), strict=True)
        pairs = [(x, x), *parameters]
        mine = torch.autograd.grad(got, [a for a, _ in pairs], g)
        reference = torch.autograd.grad(wanted, [b for _, b in pairs], g)
        for a, b in zip(mine, reference, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        count += 1
    assert count >= 2


@pytest.mark.parametrize("cls", LAYERS, ids=lambda cls: cls.__name__)
def test_gradcheck_and_gradgradcheck(cls):
    count = 0
    for given in _inputs(cls, torch.float64):
        ours, _ = _pair(cls, given.constructor_input, torch.float64)
        names = [name for name, _ in ours.named_parameters()]
        x, *rest = _values(given.forward_input)
        if x.numel() > 400:
            x = x.detach()[:1].requires_grad_()

        def run(x, *values, ours=ours, names=names, rest=rest):
            state = dict(zip(names, values, strict=True))
            return torch.func.functional_call(ours, state, (x, *rest))

        operands = (x, *ours.parameters())
        torch.manual_seed(0)
        assert torch.autograd.gradcheck(run, operands, fast_mode=True)
        assert torch.autograd.gradgradcheck(run, operands, fast_mode=True)
        count += 1
    assert count >= 2


def test_every_layer_has_inputs():
    assert all(cls in INFOS for cls in LAYERS)
    assert all(getattr(gemm.torch, cls.__name__) is PAIRS[cls] for cls in LAYERS)
