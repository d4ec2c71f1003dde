"""Trains a network of which no process holds more than its share (FSDP2), and saves it without gathering it."""
