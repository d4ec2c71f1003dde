"""`python -m onnxgen` is the command `onnxgen`."""

from onnxgen.cli import main

if __name__ == "__main__":
    main()
