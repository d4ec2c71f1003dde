"""Bodies of operators of the ONNX standard for which there is no function, or none that takes the call.

The installed onnx has bodies, too, but the meaning of a file must not depend on the version that is installed: those of
Attention are other ones in each version from 1.18 to 1.23, and some were wrong.
"""

from onnxgen.passes.contrib.writer import STANDARD_BODIES
from onnxgen.passes.standard import attention, signal

__all__ = ["STANDARD_BODIES", "attention", "signal"]
