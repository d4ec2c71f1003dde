"""What this machine can train on."""
