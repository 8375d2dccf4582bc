"""The decoder: rows of tokens in, logits out."""
