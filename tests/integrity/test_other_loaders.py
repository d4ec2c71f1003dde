"""What others load the sidecar with: accelerate by its `device_map`, without a copy of the whole in memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")

from onnxgen.options import Options  # noqa: E402
from onnxgen.pipeline import generate  # noqa: E402
from onnxgen.runtime.load import imported  # noqa: E402
from tests.integrity.pairs import ONE, SHARDS, network  # noqa: E402


@pytest.mark.skipif(sys.platform == "win32", reason="mapped files can't be removed there")
@pytest.mark.parametrize("rest", ["cpu", "disk"])
@pytest.mark.parametrize("options", [ONE, SHARDS], ids=["one", "shards"])
def test_device_map(tmp_path: Path, options: Options, rest: str) -> None:
    out = tmp_path / "model.py"
    generate(network(tmp_path / "net.onnx", 1), out, options)
    index = tmp_path / "model.safetensors.index.json"
    with imported(out) as module:
        with torch.device("meta"):
            model = module.Model()
        names = [name for name, layer in model.named_modules() if [*layer.parameters(recurse=False)]]
        assert len(names) == 3
        places = dict.fromkeys(names, rest) | {names[0]: "cpu"}
        checkpoint = str(index if index.exists() else out.with_suffix(".safetensors"))
        model = accelerate.load_checkpoint_and_dispatch(
            model, checkpoint, places, offload_folder=str(tmp_path / "offloaded"), strict=True
        )
        x = torch.randn(4, 8)
        with torch.no_grad():
            torch.testing.assert_close(model(x), module.Model.from_pretrained()(x), rtol=0, atol=0)
