"""The table of operators and inputs through which no gradient flows, with the reason.

Every other floating-point input is differentiable. `tests/gradients` compares the gradients of all operators with
finite differences, and checks that this table is right, too. Inputs of text, integers and booleans have no derivatives,
so they need no row. `docs/OPERATORS.md` prints the reasons.
"""

from __future__ import annotations

PIECEWISE_CONSTANT = "the operator is piecewise constant: its derivative is 0 wherever there is one"
INTEGERS = "the results are integers or booleans"
TEXT = "the input is text or an encoded image"
COUNTED = "the result depends on no floating-point input"
DRAWN = "the numbers are random and depend on no input"
BITS = "the operator reads the bits as another type, which is not smooth"
SETS_SIZE = "the input sets the size of the result, an integer"
REFUSED = "onnxgen refuses a node with this input"
TYPE = "only the type of the input counts"
SETS_GRID = "the input only sets the numbers to round to"
UNREAD = "nothing reads it"

# operators through which no gradient flows, whatever the input
_NOWHERE = {
    PIECEWISE_CONSTANT: """
        Bernoulli Ceil Floor Hardmax MelWeightMatrix QLinearConv QLinearMatMul QuantizeLinear Round Sign
        ai.onnx.ml.Binarizer ai.onnx.ml.OneHotEncoder
        com.microsoft.QLinearAdd com.microsoft.QLinearAveragePool com.microsoft.QLinearConcat com.microsoft.QLinearConv
        com.microsoft.QLinearGlobalAveragePool com.microsoft.QLinearLeakyRelu com.microsoft.QLinearMul
        com.microsoft.QLinearReduceMean com.microsoft.QLinearSigmoid com.microsoft.QLinearSoftmax
        com.microsoft.QLinearWhere com.microsoft.QOrderedAttention com.microsoft.QOrderedGelu
        com.microsoft.QOrderedLayerNormalization com.microsoft.QOrderedLongformerAttention
        com.microsoft.QOrderedMatMul com.microsoft.QuantizeLinear com.microsoft.QuantizeWithOrder
    """,
    INTEGERS: """
        And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor ConvInteger Equal Greater GreaterOrEqual
        IsInf IsNaN Less LessOrEqual MatMulInteger Multinomial NonMaxSuppression NonZero Not OptionalHasElement Or
        SequenceLength Shape Size Xor
        ai.onnx.ml.CategoryMapper ai.onnx.ml.LabelEncoder
        com.microsoft.BifurcationDetector com.microsoft.DynamicTimeWarping com.microsoft.IsAllFinite
        com.microsoft.MatMulInteger16
        com.microsoft.MulInteger com.microsoft.MurmurHash3 com.microsoft.NGramHashMapping
        com.microsoft.PackedSparseAttentionIndexerMerge
        com.microsoft.ReduceSumInteger com.microsoft.VarlenNGramHashMapping
    """,
    TEXT: "ImageDecoder RegexFullMatch StringConcat StringNormalizer StringSplit com.microsoft.Tokenizer",
    COUNTED: """
        BlackmanWindow Constant ConstantOfShape EyeLike GivenTensorFill HammingWindow HannWindow SequenceEmpty
        TfIdfVectorizer
        com.microsoft.GatherPacked
    """,
    DRAWN: "RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
    BITS: "BitCast",
}

# inputs of other operators, by the schema's names
_BY_INPUT = {
    PIECEWISE_CONSTANT: {
        "MaxRoiPool": "rois",
        "OneHot": "indices",
        "ai.onnx.ml.TreeEnsemble": "X",
        "ai.onnx.ml.TreeEnsembleClassifier": "X",
        "ai.onnx.ml.TreeEnsembleRegressor": "X",
        "com.microsoft.QGemm": "y_scale",
    },
    SETS_SIZE: {
        "OneHot": "depth",
        "Range": "limit",
        "Resize": "scales",
        "Upsample": "scales",
        "com.microsoft.Range": "limit",
    },
    REFUSED: {
        "com.microsoft.GatedAdd": "gate_weight",
        "com.microsoft.GemmFloat8": "scaleY",
        "com.microsoft.MatMulPacked": "global_scale",
        "com.microsoft.VarlenCausalConvWithState": "kernel_delta previous_mask",
        "com.microsoft.QMoE": """
            fc1_global_scale fc2_global_scale fc1_act_scale fc2_act_scale fc1_act_block_scale fc2_act_block_scale
        """,
        "com.microsoft.PackedAttention": "attention_bias",
        "com.microsoft.PackedMultiHeadAttention": "attention_bias",
    },
    TYPE: {"CastLike": "target_type"},
    SETS_GRID: {"com.microsoft.MatMulBlockQuantizedFp8Weight": "a_scale"},
    UNREAD: {"com.microsoft.MatMulBlockQuantizedFp4Weight": "input_scale"},
}

NOWHERE = {name: reason for reason, names in _NOWHERE.items() for name in names.split()}
BY_INPUT: dict[str, dict[str, str]] = {}
for _reason, _inputs in _BY_INPUT.items():
    for _name, _given in _inputs.items():
        BY_INPUT.setdefault(_name, {}).update(dict.fromkeys(_given.split(), _reason))


def key(domain: str, name: str) -> str:
    """Return the name under which an operator is listed in the table."""
    return f"{domain}.{name}" if domain not in ("", "ai.onnx") else name


def reason(domain: str, name: str, parameter: str | None = None) -> str | None:
    """Return why no gradient flows through an operator, or through one of its inputs; None if one does."""
    operator = key(domain, name)
    everywhere = NOWHERE.get(operator)
    return everywhere or (None if parameter is None else BY_INPUT.get(operator, {}).get(parameter))
