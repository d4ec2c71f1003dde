"""Elements of tensors: stored, viewed, cast and streamed into safetensors; and weight provenance with its inverse."""
