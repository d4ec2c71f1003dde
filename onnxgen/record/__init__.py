"""What a sidecar says of its module: plain data, with one reader and one writer each. Nothing here sees a graph."""
