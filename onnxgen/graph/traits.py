"""Properties of operators that several rooms ask for, each said once.

A room that means something else on purpose says so where it does: `VIEWS - {"Identity"}`. Names are op types of ONNX's
own domain; `FakeQuantize` is onnxgen's.
"""

RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})  # the same elements in the same order
VIEWS = RESHAPES | {"Transpose", "Identity"}  # the same elements, each exactly once, in any order
# An output has elements of the first input and, for Concat, of the others: no arithmetic but a change of type.
PASSES_ON = VIEWS | {"Cast", "Concat", "Slice", "Split", "Expand", "FakeQuantize"}

# Elementwise activation functions. Other inputs of PRelu and Clip are parameters.
RECTIFIERS = frozenset(
    "Relu LeakyRelu PRelu ThresholdedRelu Clip Elu Selu Celu Gelu Swish Mish HardSwish HardSigmoid Softplus "
    "Softsign".split()
)
ACTIVATIONS = RECTIFIERS | {"Sigmoid", "Tanh"}

COMPARISONS = frozenset({"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
# Operators whose inputs all broadcast to one shape ("Multidirectional Broadcasting" in ONNX's Broadcasting.md).
BROADCASTING = COMPARISONS | frozenset(
    "Add Sub Mul Div Pow Mod Max Min Mean Sum And Or Xor Where BitShift BitwiseAnd BitwiseOr BitwiseXor".split()
)
NORMS = frozenset(
    "BatchNormalization InstanceNormalization LayerNormalization GroupNormalization RMSNormalization".split()
)
# outputs are random
RANDOM = frozenset("RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial".split())
