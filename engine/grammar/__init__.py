"""JSON schemas as grammars: which tokens may come next. Torch-free."""
