"""A Flower client app as Flower's tutorials write it: it does not import offbeat."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

app = ClientApp()


def net(normalized: bool = False) -> nn.Module:
    """Return an initialized network, with a BatchNorm layer if `normalized`."""
    layers: list[nn.Module] = [nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)]
    if normalized:
        layers.insert(1, nn.BatchNorm1d(32))
    generator = torch.Generator().manual_seed(0)  # threads share the global one
    for layer in (layers[0], layers[-1]):
        for parameter in layer.parameters():
            bound = 64**-0.5 if layer is layers[0] else 32**-0.5
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return nn.Sequential(*layers)


def data(partition: int, partitions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one partition of points from ten Gaussian clusters."""
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(10, (720,), generator=rng)
    x = torch.randn(10, 64, generator=rng)[y] + 1.5 * torch.randn(720, 64, generator=rng)
    return x[partition::partitions], y[partition::partitions]


def test(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Return loss and accuracy."""
    model.eval()
    with torch.no_grad():
        outputs = model(x)
        loss = nn.functional.cross_entropy(outputs, y).item()
        return loss, (outputs.argmax(1) == y).float().mean().item()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one epoch."""
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
            parameter.data -= lr * g  # every process would need seconds to import torch.optim
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(x)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate on the node's data."""
    arrays = message.content["arrays"]
    assert isinstance(arrays, ArrayRecord)
    model = net(any("running" in name for name in arrays))
    model.load_state_dict(arrays.to_torch_state_dict())
    x, y = data(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
    loss, accuracy = test(model, x, y)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(x)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def evaluate_globally(version: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the global model on all data, as a server app does."""
    model = net(any("running" in name for name in arrays))
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(model, *data(0, 1))
    return MetricRecord({"accuracy": accuracy, "loss": loss})
