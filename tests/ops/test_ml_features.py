"""Features and encoders of ai.onnx.ml against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, numpy_helper

from onnxgen.errors import OnnxgenError
from tests.ops.classical import ML, floats, ml_model, run_ml
from tests.ops.harness import generate, unbound_names

NUMBERS = [np.float32, np.float64, np.int64, np.int32]
OPERATORS = "Scaler Normalizer Imputer Binarizer FeatureVectorizer ArrayFeatureExtractor LabelEncoder CategoryMapper"
NAN = float("nan")


@pytest.mark.parametrize("operator", [*OPERATORS.split(), "OneHotEncoder"])
def test_every_version_is_bound(operator: str) -> None:
    assert unbound_names(operator, ML) == []


def message(operator: str, inputs: list[Any], attrs: dict[str, Any], version: int = 1) -> str:
    with pytest.raises(OnnxgenError) as caught:
        generate(ml_model(operator, inputs, attrs, version, 1))
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------ features


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("columns", [1, 3])
def test_scaler(dtype: Any, columns: int) -> None:
    attrs = {"offset": [0.1, 0.2, 0.3][:columns], "scale": [2.0, 3.0, 0.5][:columns]}
    x = (floats(5, 3) * 3).astype(dtype)
    run_ml("Scaler", [x], attrs, dynamic=True)
    run_ml("Scaler", [x[0]], attrs)


def test_scaler_is_trained() -> None:
    ran = run_ml("Scaler", [floats(5, 3)], {"offset": [0.1, 0.2, 0.3], "scale": [2.0, 3.0, 0.5]})
    assert sorted(dict(ran.model.named_parameters())) == ["offset", "scale"]
    assert ran.forward.strip() == "return (i0 - self.offset) * self.scale"
    assert "rank 3" in message("Scaler", [floats(1, 2, 3)], {"offset": [0.1, 0.2, 0.3], "scale": [1.0] * 3})
    assert "3 numbers for 2 columns" in message("Scaler", [floats(4, 2)], {"offset": [0.1] * 3, "scale": [1.0] * 3})


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(dtype: Any, norm: str) -> None:
    x = (floats(5, 3) * 3).astype(dtype)
    x[1] = 0
    run_ml("Normalizer", [x], {"norm": norm}, dynamic=True)
    run_ml("Normalizer", [x[0]], {"norm": norm})
    if dtype is np.float32:
        x[2, 1] = NAN
        run_ml("Normalizer", [x], {"norm": norm})


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_gradients_of_normalizer(norm: str) -> None:
    x = floats(4, 3)
    model = run_ml("Normalizer", [x], {"norm": norm}).model
    assert torch.autograd.gradcheck(model, [torch.from_numpy(x.astype(np.float64)).requires_grad_()])
    zeros = torch.zeros(2, 3, requires_grad=True)
    model(zeros).sum().backward()
    assert zeros.grad is not None and bool(zeros.grad.isfinite().all())


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0], [1.0, 2.0, 3.0]])
@pytest.mark.parametrize("replaced", [NAN, 7.0, 0.0])
def test_imputer(values: list[float], replaced: float) -> None:
    x = floats(5, 3)
    x[1, 1], x[2, 0], x[3, 2] = NAN, 7, -0.0
    attrs = {"imputed_value_floats": values, "replaced_value_float": replaced}
    run_ml("Imputer", [x], attrs, dynamic=True)
    run_ml("Imputer", [x[1]], attrs)
    wide = run_ml("Imputer", [x], attrs).expected[0].astype(np.float64)
    run_ml("Imputer", [x.astype(np.float64)], attrs, expected=[wide])  # onnxruntime has no kernel


def test_imputer_of_integers() -> None:
    x = np.array([[0, 4, 0], [1, 0, 2]])
    run_ml("Imputer", [x], {"imputed_value_int64s": [5, 6, 7], "replaced_value_int64": 0})
    assert "no imputed values of the input's type" in message("Imputer", [x], {"imputed_value_floats": [1.0]})


@pytest.mark.parametrize("attrs", [{}, {"threshold": 0.1}])
def test_binarizer(attrs: dict[str, float]) -> None:
    run_ml("Binarizer", [floats(5, 3)], attrs, dynamic=True)


@pytest.mark.parametrize("sizes", [[3, 2], [1, 4], [5, 1]])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_feature_vectorizer(sizes: list[int], dtype: Any) -> None:
    x, y = (floats(5, 3) * 3).astype(dtype), (floats(5, 2, 1) * 3).astype(dtype)
    run_ml("FeatureVectorizer", [x, y], {"inputdimensions": sizes})
    run_ml("FeatureVectorizer", [x[0], y[0, :, 0]], {"inputdimensions": sizes})


def test_array_feature_extractor_of_text() -> None:
    words = np.array([["a", "b"], ["zz", "c"]], dtype=object)
    run_ml("ArrayFeatureExtractor", [words, np.array([1, 0, 1])], {})
    run_ml("ArrayFeatureExtractor", [words[0], np.array([1])], {})


# ------------------------------------------------------------------------------------------------------ encoders

WORDS = np.array([["a", "b"], ["zz", "c"]], dtype=object)
INTS = np.array([[3, 1], [2, 99]])
FLOATS = np.array([[1.5, NAN], [-0.0, 9]], np.float32)
KEYS: dict[str, tuple[Any, list[Any]]] = {
    "strings": (WORDS, ["a", "c", "a"]),
    "int64s": (INTS, [3, 2, 3]),
    "floats": (FLOATS, [1.5, 0.0, NAN]),
}
VALUES: dict[str, list[Any]] = {"strings": ["x", "y", "z"], "int64s": [7, 8, 9], "floats": [0.5, 1.5, 2.5]}
DEFAULTS = {"default_string": "D", "default_int64": 5, "default_float": 6.0}


def test_label_encoder_1() -> None:
    run_ml("LabelEncoder", [WORDS], {"classes_strings": ["c", "a", "a"], "default_int64": -7})
    run_ml("LabelEncoder", [INTS], {"classes_strings": ["c", "a", "a", "q"], "default_string": "no"})


@pytest.mark.parametrize("version", [2, 3, 4, 5])
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("values", VALUES)
def test_label_encoder(version: int, keys: str, values: str) -> None:
    x, listed = KEYS[keys]
    attrs = {f"keys_{keys}": listed, f"values_{values}": VALUES[values]}
    run_ml("LabelEncoder", [x], attrs, version, dynamic=True)
    run_ml("LabelEncoder", [x], {**attrs, **DEFAULTS}, version)


def stored(values: list[Any], dtype: Any) -> TensorProto:
    return numpy_helper.from_array(np.array(values, dtype), "t")


TENSOR_KEYS = [(["a", "c", "b"], object, WORDS), ([1.5, 9.0, NAN], np.float64, FLOATS.astype(np.float64))]
TENSOR_KEYS += [([3, 2, 1], np.int64, INTS), ([1.5, 9.0, NAN], np.float32, FLOATS)]
TENSOR_KEYS += [([3, 2, 1], np.int32, INTS.astype(np.int32)), ([3, 2, 1], np.int16, INTS.astype(np.int16))]
TENSOR_VALUES = [(["x", "y", "z"], object), ([1, 2, 3], np.int64), ([1.5, 2, 3], np.float32), ([1.5, 2, 3], np.float64)]
TENSOR_VALUES += [([1, 2, 3], np.int16)]
RUN_BY_ONNXRUNTIME = {
    (object, object), (object, np.int64), (object, np.float32), (object, np.float64), (object, np.int16),
    (np.int64, object), (np.int64, np.int64), (np.int64, np.float32), (np.int64, np.float64), (np.float32, object),
    (np.float32, np.int64), (np.float32, np.float32), (np.float64, object), (np.float64, np.int64),
    (np.float64, np.float64),
}  # fmt: skip


@pytest.mark.parametrize("keys,key_type,x", TENSOR_KEYS)
@pytest.mark.parametrize("values,value_type", TENSOR_VALUES)
@pytest.mark.parametrize("has_default", [False, True])
def test_label_encoder_by_tensors(
    keys: list[Any], key_type: Any, x: Any, values: list[Any], value_type: Any, has_default: bool
) -> None:
    attrs = {"keys_tensor": stored(keys, key_type), "values_tensor": stored(values, value_type)}
    if has_default:
        attrs["default_tensor"] = stored(values[2:], value_type)
    expected = None
    if (key_type, value_type) not in RUN_BY_ONNXRUNTIME:  # it has no such kernel: the table, spelled out
        usual = {object: "_Unused", np.int64: -1, np.int16: -1}.get(value_type, -0.0)
        known = {key: value for key, value in zip(keys, values) if key == key}
        other = values[2] if has_default else usual
        wanted = [values[2] if e != e else known.get(e, other) for e in x.flat]
        expected = [np.array(wanted, value_type).reshape(x.shape)]
    run_ml("LabelEncoder", [x], attrs, 4, expected=expected)


def test_category_mapper() -> None:
    run_ml("CategoryMapper", [WORDS], {"cats_strings": ["a", "b", "a"], "cats_int64s": [5, 6, 7]}, dynamic=True)
    attrs = {"cats_strings": ["a", "b", "a"], "cats_int64s": [3, 2, 3], "default_string": "?", "default_int64": 4}
    run_ml("CategoryMapper", [INTS], attrs)
    run_ml("CategoryMapper", [WORDS], attrs)


@pytest.mark.parametrize("zeros", [0, 1])
def test_one_hot_encoder(zeros: int) -> None:
    run_ml("OneHotEncoder", [WORDS], {"cats_strings": ["b", "c", "zz", "a"], "zeros": zeros}, dynamic=True)
    run_ml("OneHotEncoder", [INTS], {"cats_int64s": [3, 99, 1, 2], "zeros": zeros}, dynamic=True)
    run_ml("OneHotEncoder", [INTS[0].astype(np.float32) + np.float32(0.5)], {"cats_int64s": [3, 1], "zeros": zeros})


def test_one_hot_encoder_of_unknown_categories() -> None:
    run_ml("OneHotEncoder", [WORDS], {"cats_strings": ["b", "c"]})
    run_ml("OneHotEncoder", [INTS.astype(np.float64)], {"cats_int64s": [99, 1]})
    for x, attrs in ((WORDS, {"cats_strings": ["zz", "a", "b", "c"]}), (INTS, {"cats_int64s": [2, 3, 99, 1]})):
        model = run_ml("OneHotEncoder", [x], {**attrs, "zeros": 0}).model
        other = np.array(["?"], object) if x is WORDS else torch.tensor([7])
        with pytest.raises(ValueError, match="none of the encoder's categories"):
            model(other)
    assert "a category twice" in message("OneHotEncoder", [INTS], {"cats_int64s": [1, 1]})
    assert "no categories of the input's type" in message("OneHotEncoder", [INTS], {"cats_strings": ["a"]})


@pytest.mark.parametrize(
    "operator,inputs,attrs",
    [
        ("Normalizer", [floats(4, 3)], {"norm": "L2"}),
        ("Imputer", [floats(4, 3)], {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": NAN}),
        ("LabelEncoder", [INTS], {"keys_int64s": [3, 2], "values_floats": [1.0, 2.0]}),
        ("OneHotEncoder", [INTS], {"cats_int64s": [3, 2]}),
        ("FeatureVectorizer", [floats(4, 3), floats(4, 1)], {"inputdimensions": [2, 2]}),
    ],
)
def test_they_compile(operator: str, inputs: list[Any], attrs: dict[str, Any]) -> None:
    ran = run_ml(operator, inputs, attrs, 2 if operator == "LabelEncoder" else 1)
    given = [torch.from_numpy(x) for x in inputs]
    torch._dynamo.reset()
    compiled = torch.compile(ran.model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*given), ran.model(*given), equal_nan=True)
