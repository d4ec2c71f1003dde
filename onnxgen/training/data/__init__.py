"""Reads data, makes it fit a model, and feeds it."""

from onnxgen.training.data.checking import check
from onnxgen.training.data.feeding import feed
from onnxgen.training.data.opening import open_data
from onnxgen.training.data.samples import Data, Feeding, Field, Samples

__all__ = ["Data", "Feeding", "Field", "Samples", "check", "feed", "open_data"]
