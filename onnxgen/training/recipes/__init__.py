"""Recipes of training beyond optimizer and loss: callbacks, and the range test of the learning rate.

A run that asks for none of them has none of their callbacks.
"""

CURVE, FIGURES = "lr.png", "lr.csv"  # of the range test, in the run's folder
