"""The `.dfm` container: one mmap-able file that holds a model, its tokenizer and its checksums."""
