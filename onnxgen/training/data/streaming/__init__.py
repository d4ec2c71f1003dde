"""Data that is larger than memory: shards that are read in order, a window of samples at a time."""
