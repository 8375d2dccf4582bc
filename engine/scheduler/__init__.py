"""Which requests run in a step, and with how many rows. No tensors."""
