"""What takes minutes runs by `make long`, as CI does after `make test`."""

import os

collect_ignore = [] if os.environ.get("ONNXGEN_LONG") else ["test_compiled.py"]
