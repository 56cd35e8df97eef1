"""Triton kernels against plain torch: on a GPU if there is one, else with Triton's interpreter on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.support.executors import built, federated, jobs, work
from tests.support.programs import run
from torch import Tensor, nn

from offbeat.client.rules import SGD, Adam, AdamW, ClientRule
from offbeat.executors import Sequential
from offbeat.executors.gpu import normalization, pooling, triton_support
from offbeat.executors.gpu.batch_norm import stacked_batch_norm
from offbeat.executors.gpu.convolution import stacked_conv2d, stacked_conv2d_and_input
from offbeat.executors.stacked import Stack
from offbeat.messages import Update
from offbeat.models import CNN, ConvMixer, Model
from offbeat.models.resnet import Block

pytest.importorskip("triton")
kernels = pytest.importorskip("offbeat.executors.gpu.kernels")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        self.scale, self.nothing = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.empty(0))
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x) * self.scale + self.nothing.sum()
        return outputs


@pytest.fixture
def kernels_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_support, "has_kernels", lambda x: True)


@pytest.mark.parametrize(
    "shape",
    [(3, 2, 3, 8, 9, 5, 2, 1, 1), (2, 4, 16, 32, 12, 3, 1, 1, 1), (2, 4, 3, 8, 12, 5, 0, 1, 1),
     (2, 4, 32, 40, 8, 3, 1, 2, 1), (2, 4, 5, 6, 9, 3, 1, 2, 1), (2, 4, 48, 8, 8, 4, 0, 2, 1),
     (2, 2, 64, 130, 4, 3, 1, 1, 1), (2, 3, 32, 16, 8, 1, 0, 2, 1), (2, 3, 16, 6, 7, 1, 0, 3, 1),
     (2, 1, 5, 4, 7, 2, 0, 3, 1), (2, 2, 16, 300, 4, 3, 1, 1, 1), (2, 1, 6, 6, 7, 5, 2, 1, 6),
     (2, 2, 40, 40, 5, 3, 1, 1, 40),
     (2, 2, 16, 16, 7, 5, 1, 3, 16), (2, 2, 8, 8, 8, 3, 1, 1, 8)],
)  # fmt: skip
def test_stacked_convolutions(shape: tuple[int, ...]) -> None:
    n, batch, channels, out, size, kernel, padding, stride, groups = shape
    rng = torch.Generator(DEVICE).manual_seed(0)
    x = torch.randn(n * batch, channels, size, size, device=DEVICE, generator=rng, requires_grad=True)
    weight = torch.randn(n, out, channels // groups, kernel, kernel, device=DEVICE, generator=rng, requires_grad=True)
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    try:
        y = stacked_conv2d(x, weight, stride, (padding, padding), groups)
        parts = [
            nn.functional.conv2d(a, w, padding=padding, stride=stride, groups=groups)
            for a, w in zip(torch.split(x, batch), weight, strict=True)
        ]
        plain, slope = torch.cat(parts), torch.randn(y.shape, device=DEVICE, generator=rng)
        found = torch.autograd.grad(y, (x, weight), slope)
        expected = torch.autograd.grad(plain, (x, weight), slope)
        output, again = stacked_conv2d_and_input(x, weight, stride, (padding, padding), groups)
        other = torch.randn(x.shape, device=DEVICE, generator=rng)
        both = torch.autograd.grad((output, again), (x, weight), (slope, other))
    finally:
        torch.backends.cudnn.allow_tf32 = before
    assert torch.equal(again, x)
    found, expected = (*found, *both), (*expected, expected[0] + other, expected[1])
    for one, other in ((y, plain), (output, plain), *zip(found, expected, strict=True)):
        assert (one - other).norm() < 1e-5 * other.norm()


@pytest.mark.parametrize("shape", [(2, 3, 5, 8, 6), (3, 2, 32, 4, 4), (2, 2, 70, 6, 10)])
def test_pooling_in_one_pass(shape: tuple[int, ...]) -> None:
    n, batch, channels, height, width = shape
    rng = torch.Generator(DEVICE).manual_seed(0)
    x = torch.randn(n * batch, channels, height, width, device=DEVICE, generator=rng).round(decimals=1)  # with ties
    bias = torch.randn(n, channels, device=DEVICE, generator=rng)
    same_results(
        (x, bias), pooling.stacked_pool, lambda x, b: (nn.functional.max_pool2d(x, 2) + by_image(b, batch)).relu()
    )


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    "shape", [(2, 3, 8, 5, 4), (3, 2, 64, 8, 32), (2, 2, 128, 3, 32), (2, 2, 256, 2, 1), (2, 1, 32, 34, 8)]
)
def test_group_norm_of_stacks(shape: tuple[int, ...], relu: bool) -> None:
    n, batch, channels, size, groups = shape
    rng = torch.Generator(DEVICE).manual_seed(0)
    x = torch.randn(n * batch, channels, size, size, device=DEVICE, generator=rng)
    weight, bias = torch.randn(2, n, channels, device=DEVICE, generator=rng)

    def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = nn.functional.group_norm(x, groups) * by_image(weight, batch) + by_image(bias, batch)
        return y.relu() if relu else y

    same_results(
        (x, weight, bias), lambda x, w, b: normalization.stacked_group_norm(x, w, b, groups, 1e-5, relu), plain
    )


@pytest.mark.parametrize(("gelu", "relu"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("shape", [(2, 3, 8, 5), (3, 4, 70, 3), (2, 5, 6, 0), (1, 40, 4, 9)])
def test_batch_norm_of_stacks(shape: tuple[int, ...], gelu: bool, relu: bool) -> None:
    """With the bias and the activation around it, short batches, a client without a batch, and running statistics."""
    n, batch, channels, size = shape
    rng = torch.Generator(DEVICE).manual_seed(0)
    images = (size, size) if size else ()
    x = (0.5 if gelu else 10) + torch.randn(n * batch, channels, *images, device=DEVICE, generator=rng)
    shift, weight, bias = torch.randn(3, n, channels, device=DEVICE, generator=rng)
    valid = torch.tensor([batch, batch - 1, 0][:n], device=DEVICE)
    inside = (torch.arange(batch, device=DEVICE) < valid[:, None]).flatten()
    means, variances = torch.rand(2, n, channels, device=DEVICE, generator=rng)
    moved = means.clone(), variances.clone(), torch.arange(n, device=DEVICE, dtype=torch.float32)

    def plain(x: Tensor, weight: Tensor, bias: Tensor, shift: Tensor = shift) -> Tensor:
        parts = []
        for i, rows in enumerate(torch.split(x, batch)):
            count, a = int(valid[i]), rows + shift[i].view(-1, *(1,) * len(images))
            a = nn.functional.gelu(a) if gelu else a
            y = torch.zeros_like(rows)
            if count:
                statistics = means[i], variances[i]
                y[:count] = nn.functional.batch_norm(a[:count], *statistics, weight[i], bias[i], True, 0.1, 1e-5)
            parts.append(y.relu() if relu else y)
        return torch.cat(parts)

    def fast(x: Tensor, weight: Tensor, bias: Tensor, shift: Tensor = shift) -> Tensor:
        return stacked_batch_norm(x, shift, weight, bias, valid, moved, 0.1, 1e-5, gelu, relu)

    # Without a GELU the normalization cancels the shift, whose gradient is then nothing but rounding.
    same_results((x, weight, bias, *([shift] if gelu else [])), fast, plain)
    counts = torch.arange(n, device=DEVICE) + (valid > 0).float()
    for one, other in zip(moved, (means, variances, counts), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    r = torch.randn(x.shape, device=DEVICE, generator=rng)

    def added(x: Tensor, weight: Tensor, bias: Tensor, r: Tensor) -> Tensor:
        return stacked_batch_norm(x, shift, weight, bias, valid, None, 0.1, 1e-5, gelu, relu, r)

    def plain_sum(x: Tensor, weight: Tensor, bias: Tensor, r: Tensor) -> Tensor:
        rows = [nn.functional.gelu(a) if gelu else a for a in torch.split(x + by_example(shift, batch, x), batch)]
        parts = []
        for i, (a, b) in enumerate(zip(rows, torch.split(r, batch), strict=True)):
            count = int(valid[i])
            y = b.clone()
            if count:
                y[:count] += nn.functional.batch_norm(a[:count], None, None, weight[i], bias[i], True, 0.1, 1e-5)
            parts.append(
                (y.relu() if relu else y) * (torch.arange(batch, device=DEVICE) < count).view(-1, *(1,) * (y.ndim - 1))
            )
        return torch.cat(parts)

    slope = inside.view(-1, *(1,) * (x.ndim - 1)).float()  # the loss of padding has no gradient
    same_results((x, weight, bias, r), lambda *given: added(*given) * slope, lambda *given: plain_sum(*given) * slope)
    y = stacked_batch_norm(x, None, weight, bias, valid, None, 0.1, 1e-5, gelu, relu)
    assert not y[~inside].any()
    torch.testing.assert_close(y, plain(x, weight, bias, torch.zeros_like(shift)), rtol=1e-4, atol=1e-5)


def by_example(rows: Tensor, batch: int, like: Tensor) -> Tensor:
    return rows.repeat_interleave(batch, 0).view(*like.shape[:2], *(1,) * (like.ndim - 2))


def by_image(rows: Tensor, batch: int) -> Tensor:
    return rows.repeat_interleave(batch, 0)[:, :, None, None]


def same_results(inputs: tuple[Tensor, ...], fast: Callable[..., Tensor], plain: Callable[..., Tensor]) -> None:
    """Compare outputs and gradients."""
    found = []
    for function in (fast, plain):
        leaves = [value.clone().requires_grad_() for value in inputs]
        out = function(*leaves)
        slope = torch.randn(out.shape, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(1))
        found.append((out, *torch.autograd.grad(out, leaves, slope)))
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() < 1e-5 * other.norm()


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU whole executors are tested, in test_gpu.py")
@pytest.mark.usefixtures("kernels_everywhere")
@pytest.mark.parametrize(
    ("model", "momentum"),
    [
        (CNN(), 0.0),
        (ConvMixer(dim=8, depth=1, kernel=3, patch=2, groups=4), 0.9),
        (ConvMixer(dim=8, depth=1, kernel=3, patch=2, norm="batch"), 0.0),
    ],
    ids=lambda m: type(m).__name__,
)
def test_a_step_made_of_them(model: Model, momentum: float) -> None:
    """The program that a GPU captures, on its memory, against the plain executor: one client stops after one step."""
    rule = SGD(lr=0.05, epochs=1, batch_size=4, momentum=momentum, weight_decay=0.01)
    w = work(built(model), rule, federated(sizes=(3, 7)))
    assert Stack(w.context).independent, "as a stacked module"
    program, moved = run(None, w)
    assert program.apart == (not momentum), "parameter by parameter where the rule is plain"
    plain = [u.delta for u in Sequential(w).train_all([(w, j) for j in jobs(w)]) if isinstance(u, Update)]
    assert ((moved - torch.stack(plain)).norm(dim=1) < 1e-3 * torch.stack(plain).norm(dim=1)).all()


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU whole executors are tested, in test_gpu.py")
@pytest.mark.usefixtures("kernels_everywhere")
@pytest.mark.parametrize("norm", [nn.BatchNorm2d, lambda channels: nn.GroupNorm(2, channels)], ids=["batch", "group"])
def test_a_step_of_residual_blocks(norm: Callable[[int], nn.Module]) -> None:
    """A block of a ResNet with a stride, whose shortcut is a convolution."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), norm(4), nn.ReLU(), Block(4, 8, 2, norm),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip
    w = work(module, SGD(lr=0.05, epochs=1, batch_size=4, weight_decay=0.01), federated(sizes=(3, 7)))
    assert Stack(w.context).independent, "as a stacked module"
    _, moved = run(None, w)
    plain = [u.delta for u in Sequential(w).train_all([(w, j) for j in jobs(w)]) if isinstance(u, Update)]
    assert ((moved - torch.stack(plain)).norm(dim=1) < 1e-3 * torch.stack(plain).norm(dim=1)).all()


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU whole executors are tested, in test_gpu.py")
@pytest.mark.usefixtures("kernels_everywhere")
def test_a_step_with_batch_norm_around_convolutions_and_vectors() -> None:
    """One client stops after one step, and every batch is short for one of them."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, bias=False), nn.GELU(), nn.BatchNorm2d(6),
        nn.Flatten(), nn.Linear(96, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4),
    )  # fmt: skip
    w = work(module, SGD(lr=0.05, epochs=1, batch_size=4), federated(sizes=(3, 7)))
    assert Stack(w.context).independent, "as a stacked module"
    _, moved = run(None, w)
    plain = [u.delta for u in Sequential(w).train_all([(w, j) for j in jobs(w)]) if isinstance(u, Update)]
    torch.testing.assert_close(moved, torch.stack(plain), rtol=1e-3, atol=1e-6)


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU whole executors are tested, in test_gpu.py")
@pytest.mark.usefixtures("kernels_everywhere")
@pytest.mark.parametrize(
    "rule",
    [
        SGD(lr=0.1, epochs=1, batch_size=4, weight_decay=0.1),
        Adam(lr=0.1, epochs=2, batch_size=4, weight_decay=0.1, clip_norm=0.3),
        AdamW(lr=0.1, epochs=2, batch_size=4, weight_decay=0.1),
    ],
    ids=lambda rule: rule.name,
)
def test_a_step_of_odd_parameters(rule: ClientRule) -> None:
    """One number, none at all, and one that nothing depends on; one client stops earlier than the other."""
    torch.manual_seed(0)
    w = work(Odd(), rule, federated(sizes=(3, 7)))
    program, moved = run(None, w)
    assert program.apart
    plain = [u.delta for u in Sequential(w).train_all([(w, j) for j in jobs(w)]) if isinstance(u, Update)]
    torch.testing.assert_close(moved, torch.stack(plain), rtol=1e-4, atol=1e-6)
    assert torch.equal(run(program, w)[1], moved), "whatever the last stack has left in the program's memory"


def test_kernels_that_do_not_run_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton builds a part of itself at its first use, for which it needs a compiler."""
    device = torch.device(DEVICE)
    assert triton_support.runs(device)

    def fails(*_: Tensor) -> None:
        raise RuntimeError("Failed to find C compiler.\nSet CC.")

    monkeypatch.setattr(kernels, "keep", fails)
    with pytest.warns(RuntimeWarning, match=r"stacks of convolutions are slower: Failed to find C compiler\.$"):
        assert not triton_support.runs(device)


def test_only_rows_that_are_on_are_copied() -> None:
    """Also for a value that must be broadcast."""
    old, on = torch.zeros(3, 5, device=DEVICE), torch.tensor([[True], [False], [True]], device=DEVICE)
    for new in (torch.rand(3, 5, device=DEVICE), torch.rand(3, 1, device=DEVICE), torch.rand(5, device=DEVICE)):
        expected = torch.where(on, new, old)
        kernels.keep(new, old, on)
        assert torch.equal(old, expected)


def test_a_plain_step_of_some_rows() -> None:
    """Of a part of each row, as a parameter is."""
    y, g = torch.randn(3, 10, device=DEVICE), torch.randn(3, 2, 3, device=DEVICE)
    lr, on = torch.rand(3, 1, device=DEVICE), torch.tensor([[True], [False], [True]], device=DEVICE)
    part = y[:, 2:8].view(3, 2, 3)
    expected = torch.where(on, y[:, 2:8] - lr * (g.flatten(1) + 0.1 * y[:, 2:8]), y[:, 2:8])
    around = y[:, [0, 1, 8, 9]]
    kernels.descend(part, g, lr, on, 0.1)
    torch.testing.assert_close(y[:, 2:8], expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(y[:, [0, 1, 8, 9]], around)
