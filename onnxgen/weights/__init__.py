"""Elements of tensors: stored, viewed, cast and streamed into safetensors; and weight provenance with its inverse."""

TRAINED = "preprocessing"  # a key that the metadata of trained weights have: how the inputs were prepared
