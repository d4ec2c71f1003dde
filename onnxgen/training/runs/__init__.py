"""A run is a folder that can be copied: its module, its weights, and how its data is to be fed."""
