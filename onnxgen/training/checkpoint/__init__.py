"""Nothing lost: stateful loading, atomic checkpoints, resuming bit for bit."""
