"""Recipes of training beyond optimizer and loss. Each file is one: a callback, or what the run needs for it.

A run that asks for none of them has none of their callbacks.
"""

CURVE, FIGURES = "lr.png", "lr.csv"  # of the range test, in the run's folder
