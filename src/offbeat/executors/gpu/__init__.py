"""GPU execution: captured programs, CUDA graphs and Triton kernels."""
