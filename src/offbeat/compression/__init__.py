"""Compression of updates and models, with exact sizes in bytes."""

from dataclasses import dataclass, field

from offbeat.compression.base import Codec
from offbeat.compression.dense import QSGD, Raw, Sign, Uniform
from offbeat.compression.sparse import RandomK, TopK
from offbeat.errors import ConfigError
from offbeat.options import Options

CODECS: dict[str, type[Codec]] = {
    "none": Raw,
    "top-k": TopK,
    "random-k": RandomK,
    "qsgd": QSGD,
    "sign": Sign,
    "uniform": Uniform,
}


@dataclass(kw_only=True, frozen=True)
class Compression(Options):
    """Compression of the updates on their way up and of the models on their way down."""

    upload: Codec = field(default_factory=Raw)
    """Codec of the updates."""
    download: Codec = field(default_factory=Raw)
    """Codec of the models."""
    error_feedback: bool = False
    """Whether each client adds the compression error of its last update to the next one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.error_feedback and isinstance(self.upload, RandomK) and self.upload.unbiased:
            raise ConfigError(
                "error feedback diverges with unbiased random-k: set unbiased = false", key="upload.unbiased"
            )


__all__ = ["CODECS", "QSGD", "Codec", "Compression", "RandomK", "Raw", "Sign", "TopK", "Uniform"]
