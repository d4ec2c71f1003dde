"""The elements of tensors: stored, viewed, cast, and streamed into safetensors; and the way back to the ONNX file."""
