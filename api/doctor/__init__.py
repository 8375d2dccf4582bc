"""What otherwise fails silently: checks of this machine, this installation and its state."""
