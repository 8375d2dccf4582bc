"""Where keys and values live: storage by slot, pages, prefixes."""
