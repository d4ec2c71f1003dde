"""Each task with onnxgen and in a loop by hand, on the data and networks of the samples."""
