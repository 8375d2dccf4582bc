"""Random lattices for tests of the graph."""

from __future__ import annotations

from hypothesis import strategies as st

from engine.graph.lattice import Lattice, LatticeBuilder

chains = st.lists(
    st.lists(
        st.tuples(st.integers(0, 4), st.floats(0.01, 1.0)),
        min_size=1,
        max_size=6,
    ),
    max_size=5,
)


@st.composite
def lattices(draw: st.DrawFn) -> Lattice:
    """Lattices of a few colliding chains over five tokens."""
    builder = LatticeBuilder(depth_limit=draw(st.integers(1, 6)))
    for origin, chain in enumerate(draw(chains)):
        builder.add([token for token, _ in chain], [weight for _, weight in chain], 1 << origin)
    return builder.build()
