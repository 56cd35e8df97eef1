"""Models."""

from offbeat.models.classic import CNN, LR, MLP, Model

MODELS: dict[str, type[Model]] = {"lr": LR, "mlp": MLP, "cnn": CNN}

__all__ = ["CNN", "LR", "MLP", "MODELS", "Model"]
