"""The CPU's own kernels: weights in blocks times rows in 8 bits, and all of a step around them.

C++ (`native/`), compiled where there is a compiler, beside a torch twin that does the same
arithmetic operation by operation. Instruction set, thread count and twin change no bit of a result.
"""
