"""`dflash quickstart`: from an empty folder to one real answer with its signed receipt."""
