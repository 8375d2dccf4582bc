"""What a model makes of a text: perplexity, in sliding windows."""
