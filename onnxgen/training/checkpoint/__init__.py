"""Saves a run in atomic checkpoints, and resumes it bit for bit."""
