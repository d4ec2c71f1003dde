"""A generated module in memory: loaded from a file, or reloaded after the file changed. Imports torch."""
