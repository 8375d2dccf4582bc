"""Memory for results, used again once nobody looks at them.

A fresh tensor of some megabytes costs a page fault for every four kilobytes: a tenth of a step.
"""

from __future__ import annotations

import math
import sys

import numpy as np
import torch
from torch import Tensor

_KEPT = 4  # buffers whose results are still looked at; more are forgotten, and freed by their users
_UNUSED = 3  # references: the list's, the loop's, and the one that asks


class ReusedMemory:
    """Hands out uninitialised float32 tensors. Not thread-safe."""

    def __init__(self) -> None:
        self._buffers: list[np.ndarray[tuple[int], np.dtype[np.float32]]] = []

    def tensor(self, *shape: int) -> Tensor:
        """Return a tensor whose memory is no other living tensor's."""
        count = math.prod(shape)
        for buffer in self._buffers:
            # torch and numpy hold the buffer itself for as long as any view of it lives
            if len(buffer) >= count and sys.getrefcount(buffer) == _UNUSED:
                return torch.from_numpy(buffer[:count]).view(shape)
        buffer = np.empty(count, dtype=np.float32)
        self._buffers = [buffer, *self._buffers[: _KEPT - 1]]
        return torch.from_numpy(buffer[:count]).view(shape)
