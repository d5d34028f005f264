"""gemm.torch: what PyTorch users rely on besides the numbers, which tests/suites holds."""

import copy
import inspect
import pickle

import pytest

torch = pytest.importorskip("torch")

import gemm.torch  # noqa: E402
from gemm.torch.conversion import PAIRS  # noqa: E402

CONVOLUTIONS = [cls for cls in PAIRS if cls is not torch.nn.Linear]


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding="same", padding_mode="reflect"),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, stride=2, groups=4, bias=False),
        torch.nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 10 * 10, 5),
    ).eval()


@pytest.mark.parametrize("theirs", PAIRS, ids=lambda cls: cls.__name__)
def test_constructors_are_exact(theirs):
    ours = PAIRS[theirs]
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert issubclass(ours, theirs)


def test_initialisation_state_and_text_are_pytorchs():
    for seed, (theirs, ours) in enumerate(PAIRS.items()):
        arguments = (4, 6) if theirs is torch.nn.Linear else (4, 6, 3)
        torch.manual_seed(seed)
        wanted = theirs(*arguments)
        torch.manual_seed(seed)
        got = ours(*arguments)
        assert list(got.state_dict()) == ["weight", "bias"]
        assert all(map(torch.equal, got.state_dict().values(), wanted.state_dict().values()))
        assert repr(got) == repr(wanted)


@pytest.mark.parametrize("theirs", CONVOLUTIONS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize(
    "bad, message",
    [
        ({"stride": 0}, "stride must be at least 1, got 0"),
        ({"dilation": 0}, "dilation must be at least 1, got 0"),
        ({"padding": -1}, "padding must be at least 0, got -1"),
        ({"groups": 0}, "groups must be at least 1, got 0"),
        ({"groups": -(2**63)}, "groups must be at least 1"),
        ({"groups": 3}, "input channels are not divisible into 3 groups"),
        ({"kernel_size": 0}, "kernel_size must be at least 1, got 0"),
        ({"stride": (1, 1, 1, 1)}, "stride must have . entries, got 4"),
    ],
)
def test_bad_parameters_are_refused_at_construction(theirs, bad, message):
    arguments = {"in_channels": 4, "out_channels": 4, "kernel_size": 3, **bad}
    with pytest.raises(ValueError, match=f"{theirs.__name__}: .*{message}"):
        PAIRS[theirs](**arguments)


def test_bad_inputs_are_refused_in_one_wording():
    layer = gemm.torch.Conv2d(3, 4, 3)
    with pytest.raises(ValueError, match="conv2d: the kernel is larger than the padded input"):
        layer(torch.ones(1, 3, 2, 5))
    with pytest.raises(ValueError, match="conv2d: x has 2 channels, the filters take 3"):
        layer(torch.ones(1, 2, 5, 5))
    with pytest.raises(ValueError, match="conv2d: x must have 3 or 4 axes"):
        layer(torch.ones(5, 5))
    with pytest.raises(TypeError, match="must have one dtype"):
        layer(torch.ones(1, 3, 5, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match="Linear: x must have 3 entries in its last axis"):
        gemm.torch.Linear(3, 4)(torch.ones(2, 4))


def test_convert_and_revert_in_place():
    net, x = model(), torch.randn(2, 3, 9, 9)
    wanted, parameters = net(x), [id(p) for p in net.parameters()]
    layers = list(net)
    seen = []
    net[0].register_forward_hook(lambda *_: seen.append(1))
    assert gemm.torch.convert(net) is net
    assert [type(layer).__module__ for layer in net].count("gemm.torch.layers") == 4
    assert all(a is b for a, b in zip(net, layers, strict=True))
    torch.testing.assert_close(net(x), wanted)
    assert seen == [1]
    assert [id(p) for p in net.parameters()] == parameters
    gemm.torch.revert(net)
    assert not any("gemm" in type(layer).__module__ for layer in net)
    assert torch.equal(net(x), wanted)


def test_convert_leaves_subclasses_alone():
    class Mine(torch.nn.Conv2d):
        def forward(self, x):
            return x

    net = torch.nn.Sequential(Mine(1, 1, 1), torch.nn.LazyLinear(2))
    gemm.torch.convert(net)
    assert type(net[0]) is Mine
    assert type(net[1]) is torch.nn.LazyLinear


def test_pickle_and_deepcopy():
    net, x = gemm.torch.convert(model()), torch.randn(2, 3, 9, 9)
    wanted = net(x)
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), wanted)
    twin = copy.deepcopy(net)
    with torch.no_grad():
        net[0].weight.zero_()
    assert torch.equal(twin(x), wanted)


def test_training_follows_pytorch():
    ours, theirs = gemm.torch.convert(model()), model()
    x, wanted = torch.randn(4, 3, 9, 9), torch.randn(4, 5)
    for net in (ours, theirs):
        optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
        for _ in range(3):
            optimiser.zero_grad()
            torch.nn.functional.mse_loss(net(x), wanted).backward()
            optimiser.step()
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_packed_weights_follow_every_change():
    layer = gemm.torch.Conv2d(3, 4, 3, bias=False)
    x = torch.randn(1, 3, 6, 6)
    first = layer(x)
    layer.weight.data.mul_(2)  # moves no version counter
    torch.testing.assert_close(layer(x), 2 * first)
    layer.weight.detach().numpy()[0, 0, 0, 0] += 1
    assert not torch.equal(layer(x)[:, 0], 2 * first[:, 0])
    layer.load_state_dict({"weight": torch.zeros_like(layer.weight)})
    assert not layer(x).any()


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_repeated_transposed_layer_follows_every_change(stride, groups):
    layer = gemm.torch.ConvTranspose2d(4, 6, 3, stride, groups=groups)
    theirs = torch.nn.ConvTranspose2d(4, 6, 3, stride, groups=groups)
    for step in range(3):
        for n, kind in ((6, torch.contiguous_format), (7, torch.channels_last)):
            for _ in range(2):
                x = torch.randn(2, 4, n, n).contiguous(memory_format=kind)
                theirs.load_state_dict(layer.state_dict())
                torch.testing.assert_close(layer(x), theirs(x), rtol=1e-5, atol=1e-5)
        if step == 0:
            layer.weight.data.mul_(2)  # moves no version counter
            layer.bias.data += 1
        else:
            layer.weight.detach().numpy()[0, 0, 0, 0] += 1
            layer.bias = torch.nn.Parameter(torch.randn(6))


def test_packed_weights_die_with_their_layer():
    from gemm.convolution import filters

    layer = gemm.torch.Conv2d(3, 4, 3)
    before = len(filters._packed)
    layer(torch.randn(1, 3, 6, 6))
    assert len(filters._packed) == before + 1
    del layer
    assert len(filters._packed) == before


def test_channels_last_in_channels_last_out():
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    ours = gemm.torch.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    y = ours(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, ours(x.contiguous()))
    y.sum().backward()
    assert ours.weight.grad.shape == ours.weight.shape


def test_unbatched_and_output_size():
    layer = gemm.torch.ConvTranspose2d(2, 3, 3, stride=2, padding=1)
    x = torch.randn(2, 5, 5)
    y = layer(x, output_size=(10, 10))
    assert y.shape == (3, 10, 10)
    assert torch.equal(layer(x[None], output_size=(10, 10))[0], y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    if dtype == torch.bfloat16:
        pytest.importorskip("ml_dtypes")
    net, x = gemm.torch.convert(model()), torch.randn(2, 3, 9, 9)
    wanted = net(x)
    with torch.autocast("cpu", dtype=dtype):
        got = net(x)
        got.sum().backward()
    assert got.dtype == dtype
    assert net[0].weight.grad.dtype == torch.float32
    torch.testing.assert_close(got.float(), wanted, rtol=0.05, atol=0.05)


def test_compiles_as_one_graph():
    net, x = gemm.torch.convert(model()), torch.randn(2, 3, 9, 9)
    explained = torch._dynamo.explain(net)(x)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True, dynamic=True)
    for batch in (2, 3, 5):
        x = torch.randn(batch, 3, 9, 9, requires_grad=True)
        y = compiled(x)
        assert torch.equal(y, net(x))
        (gradient,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(gradient, torch.autograd.grad(net(x).sum(), x)[0])


def test_operators_pass_opcheck():
    x, w, b = torch.randn(2, 4, 6), torch.randn(6, 2, 3), torch.randn(6)
    dy = torch.randn(2, 6, 4)
    tensors = [t.requires_grad_() for t in (x, w, b, dy)]
    x, w, b, dy = tensors
    opcheck = torch.library.opcheck
    ops = torch.ops.gemm
    opcheck(ops.conv.default, (x, w, b, [1], [0], [4], [1], 2))
    opcheck(ops.conv_input.default, (dy, w, None, [1], [0], [6], [1], 2))
    opcheck(ops.conv_weight.default, (dy, x, [1], [0], [3], [1], 2))
    opcheck(ops.linear.default, (x, torch.randn(5, 6), None))


def test_empty_batches():
    for theirs, ours in PAIRS.items():
        if theirs is torch.nn.Linear:
            layer, x = ours(4, 6), torch.ones(0, 4, requires_grad=True)
        else:
            layer, rank = ours(4, 6, 3), int(theirs.__name__[-2])
            x = torch.ones(0, 4, *(5,) * rank, requires_grad=True)
        y = layer(x)
        assert y.shape[0] == 0
        y.sum().backward()
        assert x.grad.shape == x.shape
        assert not layer.weight.grad.any()


def test_other_devices_are_refused_clearly():
    layer = gemm.torch.Conv2d(3, 4, 3, device="meta")
    assert layer(torch.ones(1, 3, 5, 5, device="meta")).shape == (1, 4, 3, 3)
    with pytest.raises(TypeError, match="a tensor on device meta is not supported"):
        gemm.torch.arrays.array(layer.weight)


def test_layers_refuse_tensors_of_a_device():
    layer, x = gemm.torch.Conv2d(3, 4, 3), torch.ones(1, 3, 5, 5)
    # No device is needed to see the refusal: the check reads the tensor's device and no more.
    moved = type("Moved", (), {"device": torch.device("cuda", 0)})()
    with pytest.raises(TypeError, match="conv2d: a tensor on device cuda:0 is not supported"):
        gemm.torch.layers._check_device("conv2d", x, layer.weight, moved)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_filters_that_change_places_or_signs_are_seen(dtype):
    """Words that are only moved, or only change their sign, are as new as any."""
    size = 512 // torch.empty((), dtype=dtype).element_size()
    layer = gemm.torch.Conv2d(size // 4, 4, (2, 2), dtype=dtype).requires_grad_(False)
    x = torch.randn(2, size // 4, 5, 5, dtype=dtype)

    def right():
        want = torch.nn.functional.conv2d(x, layer.weight, layer.bias)
        torch.testing.assert_close(layer(x), want)

    right()
    layer.weight.data[[0, 1]] = layer.weight.data[[1, 0]].clone()
    right()
    layer.weight.data.neg_()
    right()
