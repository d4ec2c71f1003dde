"""Hunts with inputs that nobody chose: drawn graphs with the names of modules, and drawn PyTorch modules.

`python -m tests.hunts scopes --cases 1000 --seed 0` judges seeds 0 to 999, prints a table of verdicts, and the smallest
graph of each kind of failure. A seed is a case: it is the same in every run.
"""
