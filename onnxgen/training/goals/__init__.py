"""What a network is trained for. A goal has a loss, the columns that it reads, and metrics; one file for each task."""
