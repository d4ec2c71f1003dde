"""From a graph of operators to one flat PyTorch module: its statements, its members and their names."""
