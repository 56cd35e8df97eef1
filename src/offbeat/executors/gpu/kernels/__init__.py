"""Kernels in Triton, in which every client has parameters of its own.

Capitals are sizes, as in Triton's documentation; those in a signature's second line are known when the kernel is
compiled.
"""

from offbeat.executors.gpu.kernels.dense import arrange, products, weight_gradient
from offbeat.executors.gpu.kernels.depthwise import depthwise, depthwise_weight_gradient
from offbeat.executors.gpu.kernels.images import normalise, normalise_back, pool, unpool
from offbeat.executors.gpu.kernels.rows import descend, keep

__all__ = [
    "arrange",
    "depthwise",
    "depthwise_weight_gradient",
    "descend",
    "keep",
    "normalise",
    "normalise_back",
    "pool",
    "products",
    "unpool",
    "weight_gradient",
]
