"""A draft head whose layers do not attend, natively: a draft for several requests in one call.

Dims: n drafts, T taps, D hidden, S slots, V vocabulary of the head.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.kernels.cpu.runtime import NativeMatrix, NativeModel

_EDGE = np.dtype([("depth", "i4"), ("previous", "i4"), ("token", "i4"), ("probability", "f4")])

Edge = tuple[int, int, int, float]  # depth, the token before, the token, its probability


# What a head is made of, in the library's order; `engine.draft.head.shape` has the shapes.
_VECTORS = ("feature_scale", "fused_norm", "slots", "final_norm", "predecessors")
_MATRICES = ("features", "root", "last", "gate", "successors", "vocabulary")


class NativeDraftHead:
    """A head prepared beside a model. One thread at a time may call in, as for the model."""

    def __init__(
        self,
        model: NativeModel,
        vectors: Mapping[str, Tensor],
        matrices: Mapping[str, NativeMatrix],
        token_ids: NDArray[np.int32],
        *,
        layers: int,
        width: int,
        beam: int,
        floor: float,
    ) -> None:
        """Prepare a head with the vocabulary `token_ids` [V]; vectors are float32.

        Of each token `width` successors are proposed, `beam` tokens of a depth gone on from, and
        nothing of a joint probability below `floor`. Raises UnsupportedModel.
        """
        self._runtime = model.runtime
        self._foresee = model.runtime.library["head_foresee"]
        slots = len(vectors["slots"])
        self._most = width * (1 + beam * (slots - 1))
        norms = [f"{layer}.mlp_norm" for layer in range(layers)]
        # the library keeps pointers to these
        self._kept = [vectors[name].contiguous() for name in (*_VECTORS, *norms)]
        parts = [f"{layer}.{part}" for layer in range(layers) for part in ("gate_up", "down")]
        handles = [matrices[name].handle for name in (*_MATRICES, *parts)]
        sizes = np.array(
            [matrices["features"].inputs, slots, width, beam, layers, len(token_ids)],
            dtype=np.int32,
        )
        ids = np.ascontiguousarray(token_ids, dtype=np.int32)
        pointers = [vector.data_ptr() for vector in self._kept]
        self.handle: int = model.runtime.made(
            model.runtime.library["head_new"](
                model.handle,
                sizes.ctypes.data,
                floor,
                (ctypes.c_void_p * len(pointers))(*pointers),
                (ctypes.c_void_p * len(handles))(*handles),
                ids.ctypes.data,
            )
        )
        # the model's finalizer must not come first: this one holds it
        weakref.finalize(self, _free, model, self.handle)

    def foresee(
        self, roots: Sequence[int], taps: Tensor, known: NDArray[np.bool_], depths: int
    ) -> list[list[Edge]]:
        """Draft behind each root; `taps` [n, T * D] float32 are of tokens before, if `known`.

        Parents come before their children. Raises ValueError for a token outside the vocabulary.
        """
        count = len(roots)
        named = torch.tensor(roots, dtype=torch.int64)
        edges = np.empty((count, self._most), _EDGE)
        counts = np.empty(count, np.int32)
        taps = taps.contiguous()
        self._runtime.done(
            self._foresee(
                *(self.handle, count, named.data_ptr(), taps.data_ptr(), known.ctypes.data),
                *(depths, self._most, edges.ctypes.data, counts.ctypes.data),
            )
        )
        return [own[:found].tolist() for own, found in zip(edges, counts.tolist(), strict=True)]


def _free(model: NativeModel, handle: int) -> None:
    model.runtime.library["head_free"](handle)
