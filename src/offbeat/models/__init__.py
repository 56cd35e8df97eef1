"""Built-in models, each of which adapts to the shape of its input."""

from offbeat.models.base import Model
from offbeat.models.classic import CNN, LR, MLP, VGG11s
from offbeat.models.convmixer import ConvMixer
from offbeat.models.lora import LoRA
from offbeat.models.lstm import LSTM
from offbeat.models.resnet import ResNet18
from offbeat.models.transformer import GPT, ViT

MODELS: dict[str, type[Model]] = {
    "lr": LR,
    "mlp": MLP,
    "cnn": CNN,
    "vgg11s": VGG11s,
    "resnet18": ResNet18,
    "convmixer": ConvMixer,
    "lstm": LSTM,
    "vit": ViT,
    "gpt": GPT,
    "lora": LoRA,
}

__all__ = ["CNN", "GPT", "LR", "LSTM", "MLP", "MODELS", "ConvMixer", "LoRA", "Model", "ResNet18", "VGG11s", "ViT"]
