"""What a network is trained for: losses, metrics and targets, one package for each goal."""
