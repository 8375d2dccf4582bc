"""How fast the engine is, beside its own variants and the engines that people use instead."""
