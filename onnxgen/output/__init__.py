"""What a generation makes and writes: source, sidecar, signature, notes, report."""
