"""The results of a generation (source, sidecar, signature, notes, report), and how they are written."""
