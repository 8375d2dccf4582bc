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
    window: int = 64  # committed tokens whose features are attended to
    vocabulary: int = 8192  # tokens that can be proposed; a multiple of the groups
    layers: int = 1  # 0: the slots see the last committed token and the root, and nothing else
    intermediate: int = 1536
    rank: int = 64  # of the term that says what follows what
    groups: int = 1

    @property
    def key_values(self) -> int:
        """Width of one token's keys and values in one layer."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of every trained projection, all groups together."""
        inner, features = self.heads * self.head_dim, len(self.tap_layers) * self.hidden
        sizes = {
            "features": (self.hidden, features),
            "root": (self.hidden, self.hidden),
            "last": (self.hidden, self.hidden),
            "successors": (self.vocabulary, self.rank),
        }
        for layer in range(self.layers):
            sizes |= {
                f"{layer}.injected": (self.key_values, self.hidden),
                f"{layer}.qkv": (inner + self.key_values, self.hidden),
                f"{layer}.output": (self.hidden, inner),
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
            "slots": (self.slots + 1, self.hidden),
            "final_norm": (self.hidden,),
            "predecessors": (self.vocabulary + 1, self.rank),  # the last for all other tokens
        }
        for layer in range(self.layers):
            shapes |= {
                f"{layer}.norm": (self.hidden,),
                f"{layer}.mlp_norm": (self.hidden,),
                f"{layer}.distance": (self.heads, self.slots + 1, self.window + self.slots + 1),
            }
        return shapes

    @property
    def expansions(self) -> int:
        """Tokens whose successors one draft scores at most: the root's, then a beam's."""
        return 1 + BEAM * (self.slots - 1)

    @property
    def products(self) -> int:
        """Multiply-adds of one draft at most, fusing the features of one token included."""
        keys = self.window + self.slots + 1
        total = 0
        for name, (outputs, inputs) in self.linears.items():
            place, _, kind = name.rpartition(".")
            if not place:
                rows = self.expansions if kind == "successors" else 1
            elif kind == "injected":
                rows = 1
            else:  # in the last layer only the slots are computed on, once the root has its keys
                rows = self.slots + (kind == "qkv" or int(place) < self.layers - 1)
            total += rows * outputs * inputs // self.groups
        for layer in range(self.layers):
            queries = self.slots + (layer < self.layers - 1)
            total += 2 * queries * keys * self.heads * self.head_dim
        return total + self.slots * self.vocabulary * self.hidden // self.groups


def default_shape(
    architecture: Architecture, *, groups: int = 1, layers: int = 1, slots: int = 3
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
        layers=layers,
        vocabulary=min(8192, architecture.vocab_size) // groups * groups,
        intermediate=max(unit, min(1536, architecture.intermediate) // unit * unit),
        rank=-(-64 // unit) * unit,
        groups=groups,
    )
