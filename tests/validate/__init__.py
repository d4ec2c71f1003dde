"""The checker of generated texts itself: what it must refuse, and what it must let pass."""
