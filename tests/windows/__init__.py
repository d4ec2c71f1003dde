"""What differs on Windows, simulated."""
