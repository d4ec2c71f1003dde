"""Measurements, one command each: `python -m benchmarks.generation`, `.memory`, `.training`, `.models`."""
