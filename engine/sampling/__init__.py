"""How the verifier draws: counter-based uniforms, processed distributions, raw statistics.

All of it works on one row of logits at a time, in numpy on one thread, so that a row's result
depends on nothing but the row.
"""
