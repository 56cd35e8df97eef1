"""A Flower app as its tutorials write it, without a word of offbeat."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

app = ClientApp()


def net(normed: bool = False) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)]
    if normed:
        layers.insert(1, nn.BatchNorm1d(32))
    return nn.Sequential(*layers)


def data(part: int, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten clouds of points."""
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(10, (720,), generator=rng)
    x = torch.randn(10, 64, generator=rng)[y] + 1.5 * torch.randn(720, 64, generator=rng)
    return x[part::parts], y[part::parts]


def test(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    model.eval()
    with torch.no_grad():
        outputs = model(x)
        loss = nn.functional.cross_entropy(outputs, y).item()
        return loss, (outputs.argmax(1) == y).float().mean().item()


@app.train()
def train(message: Message, context: Context) -> Message:
    arrays = message.content["arrays"]
    assert isinstance(arrays, ArrayRecord)
    model = net(any("running" in name for name in arrays))
    model.load_state_dict(arrays.to_torch_state_dict())
    x, y = data(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
    lr = float(message.content["config"]["lr"])  # type: ignore[arg-type]
    model.train()
    loss = torch.zeros(())
    for batch in torch.split(torch.randperm(len(x)), 16):
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        for parameter, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
            parameter.data -= lr * g  # not by torch.optim, which takes seconds to be imported in every process
    numbers = MetricRecord({"train_loss": loss.item(), "num-examples": len(x)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": numbers}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    arrays = message.content["arrays"]
    assert isinstance(arrays, ArrayRecord)
    model = net(any("running" in name for name in arrays))
    model.load_state_dict(arrays.to_torch_state_dict())
    x, y = data(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
    loss, accuracy = test(model, x, y)
    numbers = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(x)})
    return Message(RecordDict({"metrics": numbers}), reply_to=message)


def accuracy(version: int, arrays: ArrayRecord) -> MetricRecord:
    """Of the global model, as a server app tests it."""
    model = net(any("running" in name for name in arrays))
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, right = test(model, *data(0, 1))
    return MetricRecord({"accuracy": right, "loss": loss})
