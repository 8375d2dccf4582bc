"""The GPU's kernels, in Triton, each beside a torch twin that says what it computes.

A module here imports Triton, and is therefore imported only where its kernels run: on CUDA
devices, and in Triton's interpreter. Every kernel works in tiles whose shapes depend on the model
alone, and sums in one order without splitting: a row has the same bits whatever is beside it.

The interpreter keeps bfloat16 as integers and multiplies those: whatever is loaded is therefore
cast before it is computed with, to `DOT`, which the interpreter takes as float32.
"""
