"""What travels, and how many bytes it takes."""

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
    """How updates come up and models go down."""

    upload: Codec = field(default_factory=Raw)
    """Code of the updates."""
    download: Codec = field(default_factory=Raw)
    """Code of the models."""
    error_feedback: bool = False
    """Each client adds to its next update what the code has cost the last one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.error_feedback and isinstance(self.upload, RandomK) and self.upload.unbiased:
            raise ConfigError(
                "scaling up and error feedback together diverge: give unbiased = false", key="upload.unbiased"
            )


__all__ = ["CODECS", "QSGD", "Codec", "Compression", "RandomK", "Raw", "Sign", "TopK", "Uniform"]
