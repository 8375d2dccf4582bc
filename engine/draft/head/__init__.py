"""The trained part of the draft layer: a few tokens ahead in one small bidirectional pass."""
