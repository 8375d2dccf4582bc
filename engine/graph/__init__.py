"""The block as a graph: lattice, token tree, acceptance, rollback. Plain Python, no tensors."""
