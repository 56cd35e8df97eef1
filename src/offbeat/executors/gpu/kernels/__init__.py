"""Triton kernels in which every client has separate parameters.

Capitals are sizes, as in Triton's documentation; those marked `tl.constexpr` are known when a kernel is compiled.
"""

from offbeat.executors.gpu.kernels.batch_norm import batch_normalize, batch_normalize_back, batch_statistics
from offbeat.executors.gpu.kernels.dense import arrange, products, weight_gradient
from offbeat.executors.gpu.kernels.depthwise import depthwise, depthwise_weight_gradient
from offbeat.executors.gpu.kernels.images import normalize, normalize_back, pool, unpool
from offbeat.executors.gpu.kernels.rows import adam, descend, keep
from offbeat.executors.gpu.kernels.tiles import total

__all__ = [
    "adam",
    "arrange",
    "batch_normalize",
    "batch_normalize_back",
    "batch_statistics",
    "depthwise",
    "depthwise_weight_gradient",
    "descend",
    "keep",
    "normalize",
    "normalize_back",
    "pool",
    "products",
    "total",
    "unpool",
    "weight_gradient",
]
