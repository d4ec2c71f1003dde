"""How often `onnxgen identify` is right, on networks of libraries that programs have exported and changed.

    python -m benchmarks.identify [--nets NAMES] [--ways NAMES] [--files FOLDER] [--json FILE]

Each network is built with random weights, exported by both exporters of PyTorch and changed as programs change files.
*right*: the answer has the network's name. *none*: no answer. *wrong*: other names alone. `names` is the mean number of
names in an answer that is right. `of generating` is the time of identifying over that of generating the same file.

The networks of `STRANGERS` are in no library: every name is wrong. With `--files`, all ONNX files of a folder are
asked, and the answers are printed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from onnxgen.cli.say import aligned
from onnxgen.errors import OnnxgenError
from onnxgen.identify import identify

TORCHVISION = (
    "resnet18 resnet34 resnet50 resnext50_32x4d mobilenet_v2 mobilenet_v3_small squeezenet1_1 densenet121 "
    "shufflenet_v2_x0_5 efficientnet_b0 googlenet mnasnet0_5 regnet_y_400mf convnext_tiny alexnet vgg11_bn inception_v3"
).split()
TIMM = (
    "vit_tiny_patch16_224 resnet10t resnet26d mobilenetv3_small_050 ghostnet_050 gmlp_ti16_224 resmlp_12_224 "
    "poolformer_s12 deit_tiny_distilled_patch16_224 swin_tiny_patch4_window7_224 levit_128s edgenext_xx_small "
    "rexnet_100 hrnet_w18_small repvgg_a0 mixer_s32_224 efficientnet_lite0"
).split()
SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "vocab_size": 500,
}
DEBERTA = {  # as in the trained networks, version 3
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
    "position_buckets": 256,
}
TRANSFORMERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "BertModel": ("BertConfig", SMALL, "ids"),
    "BertForSequenceClassification": ("BertConfig", SMALL, "ids"),
    "BertForTokenClassification": ("BertConfig", SMALL, "ids"),
    "RobertaModel": ("RobertaConfig", {**SMALL, "type_vocab_size": 1, "max_position_embeddings": 130}, "ids"),
    "DistilBertModel": ("DistilBertConfig", {"dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 192}, "ids"),
    "ElectraModel": ("ElectraConfig", {**SMALL, "embedding_size": 32}, "ids"),
    "AlbertModel": ("AlbertConfig", {**SMALL, "embedding_size": 32}, "ids"),
    "MPNetModel": ("MPNetConfig", SMALL, "ids"),
    "GPT2Model": (
        "GPT2Config",
        {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 500, "use_cache": False},
        "ids",
    ),
    "LlamaModel": ("LlamaConfig", {**SMALL, "num_key_value_heads": 2, "use_cache": False}, "ids"),
    "T5EncoderModel": ("T5Config", {"d_model": 64, "num_layers": 3, "num_heads": 4, "d_kv": 16, "d_ff": 192}, "ids"),
    "DebertaV2Model": ("DebertaV2Config", {**SMALL, **DEBERTA}, "ids"),
    "ViTModel": ("ViTConfig", {**SMALL, "image_size": 64}, "image"),
    "CLIPVisionModel": ("CLIPVisionConfig", {**SMALL, "image_size": 64, "patch_size": 16}, "image"),
    "Wav2Vec2Model": ("Wav2Vec2Config", {**SMALL, "num_conv_pos_embedding_groups": 4}, "sound"),
}
NAMES = {"BertForSequenceClassification": "BertModel", "BertForTokenClassification": "BertModel"}


class First(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> Any:
        out = self.module(x)
        return out if isinstance(out, torch.Tensor) else out["logits"] if "logits" in out else out[0]


def torchvision_net(name: str) -> tuple[nn.Module, torch.Tensor]:
    import torchvision.models as models

    others = {"googlenet": {"aux_logits": False, "init_weights": False}, "inception_v3": {"aux_logits": False}}
    size = 299 if name == "inception_v3" else 224
    given = {"num_classes": 10, **others.get(name, {})}
    return models.get_model(name, weights=None, **given), torch.randn(1, 3, size, size)


def timm_net(name: str) -> tuple[nn.Module, torch.Tensor]:
    import timm

    module = timm.create_model(name, pretrained=False, num_classes=7)
    return module, torch.randn(1, *module.default_cfg["input_size"])


def transformers_net(name: str) -> tuple[nn.Module, torch.Tensor]:
    import transformers

    config, given, kind = TRANSFORMERS[name]
    inputs = {
        "ids": lambda: torch.randint(3, 100, (1, 12)),
        "image": lambda: torch.randn(1, 3, 64, 64),
        "sound": lambda: torch.randn(1, 8000),
    }
    return getattr(transformers, name)(getattr(transformers, config)(**given)), inputs[kind]()


# ---- networks of no library ----


class Block(nn.Module):
    def __init__(self, wide: int, out: int, stride: int, joined: bool) -> None:
        super().__init__()
        self.joined, relu = joined, nn.ReLU()
        self.body = nn.Sequential(
            *(nn.Conv2d(wide, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), relu),
            *(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)),
        )
        short = stride > 1 or wide != out
        self.short = (
            nn.Sequential(nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out)) if short else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.short(x)) if self.joined else torch.relu(self.body(x))


def residual(
    depths: Sequence[int], width: int = 64, joined: bool = True, stem: int = 7, act: nn.Module | None = None
) -> nn.Module:
    """A network like ResNet-18, with something else."""
    first = nn.Conv2d(3, width, stem, 2, stem // 2, bias=False)
    layers: list[nn.Module] = [first, nn.BatchNorm2d(width), act or nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    wide = width
    for stage, depth in enumerate(depths):
        for at in range(depth):
            out = width * 2**stage
            layers.append(Block(wide, out, 2 if stage and not at else 1, joined))
            wide = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 10))


class Encoder(nn.Module):
    def __init__(self, first: bool, gelu: bool, dim: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(500, dim)
        layer = nn.TransformerEncoderLayer(
            dim, 4, 192, batch_first=True, norm_first=first, activation="gelu" if gelu else "relu"
        )
        self.layers, self.head = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(dim, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(ids)))


def _plain(*widths: int) -> nn.Module:
    pairs = list(zip(widths, widths[1:]))
    return nn.Sequential(
        *(m for a, b in pairs for m in (nn.Conv2d(a, b, 3, 2, 1), nn.ReLU())), nn.Flatten(), nn.LazyLinear(10)
    )


IMAGE = (1, 3, 64, 64)
STRANGERS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "resnet18, without its sums": lambda: (residual((2, 2, 2, 2), joined=False), torch.randn(IMAGE)),
    "resnet18, of SiLU at first": lambda: (residual((2, 2, 2, 2), act=nn.SiLU()), torch.randn(IMAGE)),
    "resnet18, of 48 channels": lambda: (residual((2, 2, 2, 2), 48), torch.randn(IMAGE)),
    "resnet18, a stem of 5x5": lambda: (residual((2, 2, 2, 2), stem=5), torch.randn(IMAGE)),
    "resnet of 2, 3, 2, 2 blocks": lambda: (residual((2, 3, 2, 2)), torch.randn(IMAGE)),
    "an encoder without a first norm": lambda: (Encoder(False, True), torch.randint(0, 500, (1, 9))),
    "an encoder of ReLU": lambda: (Encoder(False, False), torch.randint(0, 500, (1, 9))),
    "an encoder with norms first": lambda: (Encoder(True, True), torch.randint(0, 500, (1, 9))),
    "plain convolutions": lambda: (_plain(3, 64, 64, 128, 128, 256, 256, 512), torch.randn(1, 3, 256, 256)),
    "perceptron": lambda: (
        nn.Sequential(*(m for _ in range(9) for m in (nn.Linear(64, 64), nn.ReLU()))),
        torch.randn(1, 64),
    ),
}


# ---- ways to write and to change a file ----


def script(module: nn.Module, x: torch.Tensor, path: Path, **given: Any) -> None:
    torch.onnx.export(module, (x,), str(path), dynamo=False, opset_version=17, **given)


def dynamo(module: nn.Module, x: torch.Tensor, path: Path) -> None:
    torch.onnx.export(module, (x,), str(path), dynamo=True, external_data=False, verbose=False)


def training(module: nn.Module, x: torch.Tensor, path: Path) -> None:
    module.train()
    script(module, x, path, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
    module.eval()


def stripped(path: Path, out: Path) -> None:
    """Take all names away."""
    model = onnx.load(str(path))
    graph, names = model.graph, {"": ""}
    for value in (*graph.input, *graph.initializer, *graph.output):
        names.setdefault(value.name, f"v{len(names)}")
    for node in graph.node:
        for name in node.output:
            names.setdefault(name, f"v{len(names)}")
    for value in (*graph.input, *graph.initializer, *graph.output):
        value.name = names[value.name]
    for node in graph.node:
        node.name = ""
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names[name] for name in node.output]
        del node.metadata_props[:]
    del graph.value_info[:]
    del model.metadata_props[:]
    model.producer_name = model.producer_version = graph.name = ""
    graph.name = "g"
    onnx.save(model, str(out))


def optimised(level: str) -> Callable[[Path, Path], None]:
    def change(path: Path, out: Path) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        options.optimized_model_filepath, options.log_severity_level = str(out), 4
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    return change


def half(path: Path, out: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(str(path)), keep_io_types=True), str(out))


def integers(path: Path, out: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(str(path), str(out), weight_type=QuantType.QInt8)


def calibrated(path: Path, out: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    (given,) = onnx.load(str(path)).graph.input
    sizes = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
    whole = given.type.tensor_type.elem_type == onnx.TensorProto.INT64

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            random = np.random.default_rng(0)
            x = random.integers(3, 99, sizes) if whole else random.normal(size=sizes).astype(np.float32)
            self.left = iter([{given.name: x}])

        def get_next(self) -> Any:
            return next(self.left, None)

    kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "per_channel": True}
    quantize_static(str(path), str(out), Reader(), quant_format=QuantFormat.QDQ, **kinds)


def simplified(path: Path, out: Path) -> None:
    import onnxslim

    onnx.save(onnxslim.slim(onnx.load(str(path))), str(out))


EXPORTS: dict[str, Callable[[nn.Module, torch.Tensor, Path], None]] = {
    "script": script,
    "dynamo": dynamo,
    "training": training,
}
CHANGES: dict[str, Callable[[Path, Path], None]] = {
    "stripped": stripped,
    "simplified": simplified,
    "ORT, basic": optimised("ORT_ENABLE_BASIC"),
    "ORT, extended": optimised("ORT_ENABLE_EXTENDED"),
    "float16": half,
    "int8, dynamic": integers,
    "int8, QDQ": calibrated,
}


def files(module: nn.Module, x: torch.Tensor, folder: Path, ways: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield the ways and the files that could be written. Others are named on the error stream."""
    for way in ways:
        path = folder / f"{way.replace(' ', '')}.onnx"
        try:
            if way in EXPORTS:
                with torch.no_grad(), contextlib.redirect_stdout(sys.stderr):
                    EXPORTS[way](module, x, path)
            else:
                source = next(each for each in (folder / "script.onnx", folder / "dynamo.onnx") if each.is_file())
                CHANGES[way](source, path)
        except Exception as error:  # of the other programs
            print(f"  {way} wrote no file: {str(error)[:90]!r}", file=sys.stderr)
            path.unlink(missing_ok=True)
            continue
        yield way, path


def judged(path: Path, name: str) -> tuple[str, int, float]:
    """Return right, none or wrong, the number of names, and the seconds."""
    start = time.process_time()
    try:
        names = [known.name for known in identify(path).networks]
    except OnnxgenError as error:
        print(f"  {path.name}: {error}", file=sys.stderr)
        return "refused", 0, time.process_time() - start
    verdict = "none" if not names else "right" if name in names else "wrong"
    if verdict != "right" and name or verdict == "wrong":
        print(f"  {name or 'a stranger'} in {path.name}: {verdict} {names[:3]}", file=sys.stderr)
    return verdict, len(names), time.process_time() - start


def generating(path: Path, folder: Path) -> float:
    """Return the seconds of generating a file."""
    from onnxgen import generate

    start = time.process_time()
    generate(path, folder / "generated.py", force=True)
    return time.process_time() - start


def trained(module: nn.Module) -> None:
    """Give numbers to what begins as zeros, as training does: a quantiser of zeros is none of a network."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point() and not parameter.any():
                parameter.normal_(std=0.1)


def warm_up() -> None:
    """Import what both commands import, which is no work of theirs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.onnx"
        script(nn.Sequential(nn.Linear(3, 4), nn.ReLU()).eval(), torch.zeros(1, 3), path)
        identify(path)
        generating(path, Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="")
    parser.add_argument("--ways", default=",".join([*EXPORTS, *(w.replace(", ", "-") for w in CHANGES)]))
    parser.add_argument("--files", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if given.files:
        for path in sorted(given.files.rglob("*.onnx")):
            try:
                answer = identify(path)
                print(
                    path.relative_to(given.files),
                    [k.build or k.name for k in answer.networks[:3]] or "none",
                    flush=True,
                )
            except OnnxgenError as error:
                print(path.relative_to(given.files), "refused:", str(error)[:90], flush=True)
        return
    makers: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
        **{f"torchvision {n}": (lambda n=n: torchvision_net(n)) for n in TORCHVISION},
        **{f"timm {n}": (lambda n=n: timm_net(n)) for n in TIMM},
        **{f"transformers {n}": (lambda n=n: transformers_net(n)) for n in TRANSFORMERS},
        **{f"stranger {n}": make for n, make in STRANGERS.items()},
    }
    ways = [way.replace("-", ", ") if way.replace("-", ", ") in CHANGES else way for way in given.ways.split(",")]
    rows: list[dict[str, Any]] = []
    torch.backends.mha.set_fastpath_enabled(False)  # the older exporter does not know it
    warm_up()
    for name, make in makers.items():
        if given.nets and not any(part in name for part in given.nets.split(",")):
            continue
        torch.manual_seed(0)
        library, _, plain = name.partition(" ")
        with tempfile.TemporaryDirectory() as folder:
            try:
                module, x = make()
                module(x)
            except Exception as error:
                print(f"{name}: can't be built: {str(error)[:90]!r}", file=sys.stderr)
                continue
            trained(module)
            for way, path in files(First(module).eval(), x, Path(folder), ways):
                verdict, names, seconds = judged(path, "" if library == "stranger" else NAMES.get(plain, plain))
                ratio = seconds / generating(path, Path(folder)) if way == "script" else None
                row = {"net": name, "library": library, "way": way, "verdict": verdict, "names": names, "ratio": ratio}
                rows.append(row)
        print(name, {r["way"]: r["verdict"] for r in rows if r["net"] == name}, flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))
    print_table(rows)


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    verdicts = ("right", "none", "wrong", "refused")
    lines = [("library", "way", *verdicts, "names", "of generating")]
    for library in dict.fromkeys(row["library"] for row in rows):
        for way in dict.fromkeys(row["way"] for row in rows):
            own = [row for row in rows if (row["library"], row["way"]) == (library, way)]
            right = [row["names"] for row in own if row["verdict"] == "right"]
            ratios = [row["ratio"] for row in own if row["ratio"]]
            mean = f"{sum(right) / len(right):.1f}" if right else ""
            ratio = f"{max(ratios):.2f} at most" if ratios else ""
            lines.append((library, way, *(str(sum(r["verdict"] == v for r in own)) for v in verdicts), mean, ratio))
    print("\n".join(aligned(lines)))


if __name__ == "__main__":
    main()
