"""Built-in models, each of which adapts to the shape of its input."""

from offbeat.models.base import Model
from offbeat.models.classic import CNN, LR, MLP
from offbeat.models.convmixer import ConvMixer
from offbeat.models.lstm import LSTM
from offbeat.models.resnet import ResNet18

MODELS: dict[str, type[Model]] = {
    "lr": LR,
    "mlp": MLP,
    "cnn": CNN,
    "resnet18": ResNet18,
    "convmixer": ConvMixer,
    "lstm": LSTM,
}

__all__ = ["CNN", "LR", "LSTM", "MLP", "MODELS", "ConvMixer", "Model", "ResNet18"]
