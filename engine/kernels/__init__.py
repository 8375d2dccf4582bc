"""Arithmetic behind one seam: linear backends and the row tiles that keep them batch-invariant."""
