"""What a run shows while it runs, and leaves behind."""
