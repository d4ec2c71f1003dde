"""Make the table of architectures that `onnxgen identify` reads: the fingerprint of every network of two libraries.

    python -m benchmarks.architectures OUT [--libraries torchvision,timm] [--only PREFIX]

Each network is built on `meta`, and its steps are those of one call. A network that can't be traced so is left out, and
named on the error stream with the reason.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.tracing import steps_of_module
from onnxgen.identify.steps import digest, layers, weights_digest
from onnxgen.identify.table import Entry, written

SIZE = (3, 224, 224)
OTHER_SIZES = {"inception_v3": (3, 299, 299)}
FRAMES = (3, 16, 224, 224)  # of a video
BIG = ("regnet_y_128gf",)  # too large to compute
WITHOUT = {"googlenet": {"aux_logits": False, "init_weights": False}, "inception_v3": {"aux_logits": False}}


def torchvision_networks(only: str) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
    import torchvision.models as models

    for kind, size in ((models, SIZE), (models.segmentation, SIZE), (models.video, FRAMES)):
        for name in models.list_models(module=kind):
            if name.startswith(only):
                yield name, (name, kind), OTHER_SIZES.get(name, size)


def traced(library: str, name: str, made: Any, size: tuple[int, ...]) -> Entry:
    """Return the row of a network. Raises what the network raises without numbers."""
    try:
        return _traced("meta", library, name, made, size)
    except (NotImplementedError, RuntimeError):
        if name in BIG:
            raise
        return _traced("cpu", library, name, made, size)


def _traced(device: str, library: str, name: str, made: Any, size: tuple[int, ...]) -> Entry:
    with torch.device(device):
        if library == "timm":
            import timm

            module = timm.create_model(name, pretrained=False)
            config = module.default_cfg
            size, head = config["input_size"], int(getattr(module, "num_classes", 0) or 0) > 0
        else:
            import torchvision.models as models

            kind = made[1]
            wide = {"weights_backbone": None} if kind is models.segmentation else {}
            module = models.get_model(name, weights=None, **wide, **WITHOUT.get(name, {}))
            head = True
        x = torch.empty(1, *size)
        steps = steps_of_module(_Plain(module), x)
    body = steps.body(1 if head else 0)
    return Entry(digest(body), weights_digest(body), layers(body), library, (name,))


class _Plain(torch.nn.Module):
    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> Any:
        out = self.module(x)
        return out["out"] if isinstance(out, dict) and "out" in out else out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--libraries", default="torchvision,timm")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    entries, versions, failed = [], [], 0
    for library in given.libraries.split(","):
        versions.append(f"{library} {importlib.metadata.version(library)}")
        if library == "timm":
            import timm

            networks = [(name, None, SIZE) for name in timm.list_models() if name.startswith(given.only)]
        else:
            networks = list(torchvision_networks(given.only))
        for name, made, size in networks:
            try:
                entry = traced(library, name, made, size)
            except Exception as error:  # whatever a library's network raises without its numbers
                failed += 1
                print(f"{library} {name}: {str(error)[:100]!r}", file=sys.stderr, flush=True)
                continue
            entries.append(entry)
    given.out.write_text(written(entries, versions), encoding="utf-8")
    print(f"{len(entries)} networks, {failed} left out", file=sys.stderr)


if __name__ == "__main__":
    main()
