"""Features on disk: the store, and the extraction that fills it."""
