"""A generated module in memory: loaded from a file, or taken up again after the file changed. Imports torch."""
