"""What might come next, cheaply: sources of candidates, weighed, merged and unrolled. No tensors.

Nothing here is ever trusted: the verifier draws every token itself, so a wrong guess costs a row
and nothing else.
"""
