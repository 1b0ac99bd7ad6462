"""Mistakes in `transformer.speed.int8`."""

from faults import Fault

FAULTS = [
    Fault(
        "int8-scale-of-the-batch",
        "one large number in one row coarsens all rows",
        "QuantizedLinear.product",
        "scaled.amax(dim=-1, keepdim=True)",
        "scaled.amax()",
    ),
    Fault(
        "int8-changes-the-model",
        "the model that was given is quantized itself",
        "quantize",
        "copy.deepcopy(accelerate(model))",
        "accelerate(model)",
    ),
]
