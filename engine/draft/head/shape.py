"""The shape of a block head, and what a pass of it costs. Torch-free.

With `groups` above 1 everything is sliced: group g has its own share of the residual stream, of
the attention heads, of the vocabulary, and no weight joins two groups. Each proposes from its own
tokens, and one softmax over all of them fuses what they say.
"""

from __future__ import annotations

import msgspec

from engine.dfm.header import Architecture

BEAM = 2  # tokens of a depth whose successors are scored


class HeadShape(msgspec.Struct, frozen=True):
    """Sizes of a block head; those of the model it was trained for are repeated."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    tap_layers: tuple[int, ...]  # behind which the residual stream is read, ascending
    slots: int = 3  # tokens ahead
    window: int = 64  # committed tokens whose features are attended to; 0: layers do not attend
    vocabulary: int = 8192  # tokens that can be proposed; a multiple of the groups
    layers: int = 1  # 0: the slots see the last committed token and the root, and nothing else
    intermediate: int = 1536
    rank: int = 128  # of the term that says what follows what
    groups: int = 1

    @property
    def attends(self) -> bool:
        """Whether the layers look at more than the last two tokens, and the slots at each other."""
        return self.layers > 0 and self.window > 0

    @property
    def places(self) -> int:
        """Slots that are computed on: where they attend, the root has one of its own."""
        return self.slots + self.attends

    @property
    def key_values(self) -> int:
        """Width of one token's keys and values in one layer; 0 where none are needed."""
        return 2 * self.kv_heads * self.head_dim * self.attends

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of every trained projection, all groups together."""
        inner, features = self.heads * self.head_dim, len(self.tap_layers) * self.hidden
        sizes = {
            "features": (self.hidden, features),
            "root": (self.hidden, self.hidden),
            "last": (self.hidden, self.hidden),
            "gate": (self.rank, self.hidden),
            "successors": (self.vocabulary, self.rank),
        }
        for layer in range(self.layers):
            if self.attends:
                sizes |= {
                    f"{layer}.injected": (self.key_values, self.hidden),
                    f"{layer}.qkv": (inner + self.key_values, self.hidden),
                    f"{layer}.output": (self.hidden, inner),
                }
            sizes |= {
                f"{layer}.gate_up": (2 * self.intermediate, self.hidden),
                f"{layer}.down": (self.hidden, self.intermediate),
            }
        return sizes

    @property
    def vectors(self) -> dict[str, tuple[int, ...]]:
        """Shapes of everything trained that is no projection."""
        shapes: dict[str, tuple[int, ...]] = {
            "feature_scale": (len(self.tap_layers) * self.hidden,),
            "fused_norm": (self.hidden,),
            "slots": (self.places, self.hidden),
            "final_norm": (self.hidden,),
            "predecessors": (self.vocabulary + 1, self.rank),  # the last for all other tokens
        }
        for layer in range(self.layers):
            shapes[f"{layer}.mlp_norm"] = (self.hidden,)
            if self.attends:
                keys = self.window + self.places
                shapes[f"{layer}.norm"] = (self.hidden,)
                shapes[f"{layer}.distance"] = (self.heads, self.places, keys)
        return shapes

    @property
    def expansions(self) -> int:
        """Tokens whose successors one draft scores at most: the root's, then a beam's."""
        return 1 + BEAM * (self.slots - 1)

    @property
    def products(self) -> int:
        """Multiply-adds of one draft at most, fusing the features of one token included."""
        total = 0
        for name, (outputs, inputs) in self.linears.items():
            place, _, kind = name.rpartition(".")
            if not place:
                rows = self.expansions if kind in {"gate", "successors"} else 1
            elif kind == "injected":
                rows = 1
            else:  # in the last layer only the slots are computed on, once the root has its keys
                rows = self.places if kind == "qkv" else self._queries(int(place))
            total += rows * outputs * inputs // self.groups
        for layer in range(self.layers * self.attends):
            keys = self.window + self.places
            total += 2 * self._queries(layer) * keys * self.heads * self.head_dim
        return total + self.slots * self.vocabulary * self.hidden // self.groups

    def _queries(self, layer: int) -> int:
        return self.slots if layer == self.layers - 1 else self.places


def default_shape(
    architecture: Architecture,
    *,
    groups: int = 1,
    layers: int = 1,
    slots: int = 3,
    window: int = 0,
) -> HeadShape:
    """Return the shape that a head for a model gets unless more is asked for."""
    depth = architecture.layers
    taps = sorted({depth // 3, 2 * depth // 3, depth - 1})
    unit = 32 * groups
    return HeadShape(
        hidden=architecture.hidden,
        heads=architecture.heads,
        kv_heads=architecture.kv_heads,
        head_dim=architecture.head_dim,
        tap_layers=tuple(taps),
        slots=slots,
        window=window,
        layers=layers,
        vocabulary=min(8192, architecture.vocab_size) // groups * groups,
        intermediate=max(unit, min(1536, architecture.intermediate) // unit * unit),
        rank=-(-128 // unit) * unit,
        groups=groups,
    )
