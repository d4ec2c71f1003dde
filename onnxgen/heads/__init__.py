"""Heads of detectors: where a graph's raw maps end and the decoding of boxes begins, and what the maps mean."""
