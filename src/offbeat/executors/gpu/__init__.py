"""GPU execution: compiled and captured training steps, and Triton kernels for stacks of models.

The rest of the package uses only the names that are defined here; it works without a GPU and without Triton, which is
imported when a kernel first runs.

* `Programs` compiles and captures local steps, and replays them.
* `batch_weights` returns the weights of the examples in padded batches.
* `StackGradient` compiles and captures the gradient of a stack.
* `detect_triton` tests whether the kernels run on a device; call it before anything is compiled or captured.
* `conv2d`, `conv2d_and_input`, `group_norm`, `batch_norm` and `bias_relu_max_pool` are layers with separate parameters
  per client. They return None where the kernels do not apply, and the caller uses ordinary operations.
"""

from offbeat.executors.gpu.batch_norm import batch_norm
from offbeat.executors.gpu.convolution import conv2d, conv2d_and_input
from offbeat.executors.gpu.normalization import group_norm
from offbeat.executors.gpu.pooling import bias_relu_max_pool
from offbeat.executors.gpu.program import Program, Programs, StackGradient, batch_weights
from offbeat.executors.gpu.triton_support import detect_triton

__all__ = [
    "Program",
    "Programs",
    "StackGradient",
    "batch_norm",
    "batch_weights",
    "bias_relu_max_pool",
    "conv2d",
    "conv2d_and_input",
    "detect_triton",
    "group_norm",
]
