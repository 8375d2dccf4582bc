"""One step of the engine: plan, draft, verify, commit."""
