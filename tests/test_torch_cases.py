"""Layers and stacks give the numbers that PyTorch's own tests print.

pytorch/pytorch, test/cpp/api/transformer.cpp and test/test_transformers.py: d_model 4, two heads, d_ff 16,
every parameter filled with cos(0), cos(1), …, sequences first.
"""

from __future__ import annotations

import pytest
import torch
from helpers import assert_close
from torch import Tensor, nn

from transformer import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    LayerConfig,
    LayerNorm,
    MultiHeadAttention,
    TransformerConfig,
    causal_mask,
)

IN_ENCODER = [
    [[0.7462, 0.6653, 0.5679, 0.4891], [0.5387, 0.1655, 0.3565, 0.0471]],
    [[0.8335, 0.2799, 0.5031, 0.2947], [0.1402, 0.0318, 0.7636, 0.1346]],
    [[0.6333, 0.9344, 0.1376, 0.9938], [0.8924, 0.2872, 0.6692, 0.2944]],
    [[0.9897, 0.6915, 0.3154, 0.1733], [0.8645, 0.3513, 0.3064, 0.0767]],
    [[0.8117, 0.2366, 0.4838, 0.7881], [0.3718, 0.4945, 0.9511, 0.0864]],
]
IN_DECODER = [
    [[0.4517, 0.6793, 0.5313, 0.0034], [0.2678, 0.3677, 0.4459, 0.7166]],
    [[0.8100, 0.3716, 0.4096, 0.1976], [0.6958, 0.8844, 0.6081, 0.8315]],
    [[0.0494, 0.9343, 0.5955, 0.3830], [0.5404, 0.3464, 0.9378, 0.6200]],
]
ENCODER_LAYER = {
    "one position": ([[[20, 30, 40, 50]]], "relu", None, [[[2.258703, 0.127985, -0.697881, 0.170862]]]),
    "one position, gelu": ([[[20, 30, 40, 50]]], "gelu", None, [[[2.249815, 0.131006, -0.702199, 0.177868]]]),
    "two positions": (
        [[[1, 2, 3, 4]], [[5, 6, 7, 8]]],
        "relu",
        None,
        [[[2.272644, 0.119035, -0.691669, 0.153486]]] * 2,
    ),
    "two positions, gelu": (
        [[[1, 2, 3, 4]], [[5, 6, 7, 8]]],
        "gelu",
        None,
        [[[2.264103, 0.121417, -0.696012, 0.159724]]] * 2,
    ),
    "the first position hidden": (
        [[[1, 2, 3, 4]], [[5, 6, 7, 8]]],
        "relu",
        [[0, 0]],
        [[[2.301516, 0.092249, -0.679101, 0.103088]]] * 2,
    ),
    "a batch": (
        IN_ENCODER,
        "relu",
        None,
        [
            [[2.428589, 0.020835, -0.602055, -0.085249], [2.427987, 0.021213, -0.602496, -0.084103]],
            [[2.424689, 0.019155, -0.604793, -0.085672], [2.413863, 0.022211, -0.612486, -0.072490]],
            [[2.433774, 0.021598, -0.598343, -0.087548], [2.425104, 0.019748, -0.604515, -0.084839]],
            [[2.436185, 0.022682, -0.596625, -0.087261], [2.433556, 0.021891, -0.598509, -0.086832]],
            [[2.416246, 0.017512, -0.610712, -0.082961], [2.422901, 0.024187, -0.606178, -0.074929]],
        ],
    ),
    "a batch with hidden positions": (
        IN_ENCODER,
        "relu",
        [[0, 1], [1, 3], [1, 4]],
        [
            [[2.429026, 0.020793, -0.601741, -0.085642], [2.428811, 0.021445, -0.601912, -0.084252]],
            [[2.425009, 0.019155, -0.604566, -0.085899], [2.415408, 0.02249, -0.611415, -0.073]],
            [[2.434199, 0.021682, -0.598039, -0.087699], [2.42598, 0.019941, -0.603896, -0.085091]],
            [[2.436457, 0.022736, -0.59643, -0.08736], [2.434021, 0.022093, -0.598179, -0.08679]],
            [[2.416531, 0.017498, -0.610513, -0.083181], [2.4242, 0.024653, -0.605266, -0.074959]],
        ],
    ),
    "a batch, gelu": (
        IN_ENCODER,
        "gelu",
        None,
        [
            [
                [2.42163188, 0.03227153, -0.60714219, -0.05908082],
                [2.42151276, 0.03302179, -0.60722523, -0.05762651],
            ],
            [
                [2.41926761, 0.02974034, -0.60879519, -0.0621269],
                [2.41626395, 0.03539356, -0.61087842, -0.04978623],
            ],
            [
                [2.42382808, 0.03218872, -0.6055963, -0.06073591],
                [2.41983477, 0.03085259, -0.60840145, -0.06046414],
            ],
            [
                [2.42500749, 0.03328855, -0.60476388, -0.0595334],
                [2.4237977, 0.03290575, -0.60561789, -0.05940082],
            ],
            [
                [2.41383916, 0.02686345, -0.61256377, -0.06380707],
                [2.42000277, 0.03800944, -0.60824798, -0.04754947],
            ],
        ],
    ),
}
SEEN_ALL = [
    [[2.430065, 0.027862, -0.601136, -0.073096], [2.431935, 0.028907, -0.599809, -0.072488]],
    [[2.428457, 0.027053, -0.602275, -0.073462], [2.431970, 0.029387, -0.599789, -0.071621]],
    [[2.431934, 0.028196, -0.599802, -0.073809], [2.432306, 0.028858, -0.599542, -0.072846]],
]
DECODER_LAYER = {  # x, memory, activation, hidden positions of x, of the memory, result
    "one position": (
        [[[20, 30, 40, 50]]],
        [[[60, 70, 80, 90]]],
        "relu",
        None,
        None,
        [[[2.314351, 0.094805, -0.671322, 0.101977]]],
    ),
    "one position, gelu": (
        [[[20, 30, 40, 50]]],
        [[[60, 70, 80, 90]]],
        "gelu",
        None,
        None,
        [[[2.306435, 0.095946, -0.675796, 0.10687]]],
    ),
    "a shorter memory": (
        [[[9, 10, 11, 12]], [[11, 12, 13, 14]]],
        [[[1, 2, 3, 4]]],
        "relu",
        None,
        None,
        [[[2.422245, 0.051716, -0.606338, -0.024756]]] * 2,
    ),
    "two positions, gelu": (
        [[[1, 2, 3, 4]], [[5, 6, 7, 8]]],
        [[[9, 10, 11, 12]], [[11, 12, 13, 14]]],
        "gelu",
        None,
        None,
        [[[2.338531, 0.087709, -0.65776, 0.080646]]] * 2,
    ),
    "a batch": (IN_DECODER, IN_ENCODER, "relu", None, None, SEEN_ALL),
    "hidden positions": (
        IN_DECODER,
        IN_ENCODER,
        "relu",
        [[0, 2], [1, 1], [1, 2]],
        None,
        [
            [[2.430025, 0.027643, -0.601164, -0.073476], [2.4323, 0.029375, -0.599553, -0.071881]],
            [[2.428523, 0.026838, -0.602226, -0.07391], [2.432634, 0.029842, -0.599318, -0.071253]],
            [[2.432278, 0.028152, -0.599555, -0.074139], [2.432659, 0.029244, -0.599294, -0.072382]],
        ],
    ),
    "hidden memory": (
        IN_DECODER,
        IN_ENCODER,
        "relu",
        None,
        [[0, 4], [1, 3], [1, 4]],
        [
            [[2.429757, 0.027358, -0.601351, -0.073816], [2.432692, 0.028583, -0.599263, -0.073634]],
            [[2.428247, 0.02662, -0.602419, -0.074123], [2.432657, 0.029055, -0.599293, -0.072732]],
            [[2.431515, 0.027687, -0.600096, -0.074459], [2.433075, 0.028543, -0.598987, -0.073985]],
        ],
    ),
    "a batch, gelu": (
        IN_DECODER,
        IN_ENCODER,
        "gelu",
        None,
        None,
        [
            [
                [2.42049104, 0.03443088, -0.60793706, -0.05436271],
                [2.42210631, 0.03546578, -0.60679895, -0.05357488],
            ],
            [
                [2.41907674, 0.0336104, -0.60892977, -0.05490462],
                [2.42216881, 0.03586554, -0.6067524, -0.05289126],
            ],
            [
                [2.42205716, 0.03488046, -0.60683681, -0.05460596],
                [2.42240309, 0.0354595, -0.60659063, -0.05378816],
            ],
        ],
    ),
}
HIDDEN = [[0, 1], [1, 3], [1, 4]]  # (sentence, position)
ENCODERS = {  # number of layers and norm on top
    (2, False): [
        [[2.419051, 0.017446, -0.608738, -0.085003], [2.419102, 0.017452, -0.608703, -0.085026]],
        [[2.419043, 0.017445, -0.608744, -0.084999], [2.419052, 0.017446, -0.608738, -0.085004]],
        [[2.419067, 0.017448, -0.608727, -0.085010], [2.419098, 0.017452, -0.608706, -0.085024]],
        [[2.419072, 0.017449, -0.608724, -0.085012], [2.419119, 0.017455, -0.608691, -0.085034]],
        [[2.419019, 0.017442, -0.608761, -0.084989], [2.419075, 0.017449, -0.608722, -0.085014]],
    ],
    (6, False): [[[2.419101, 0.017453, -0.608703, -0.085025]] * 2] * 5,
    (2, True): [
        [[1.695949, -0.357635, -0.893077, -0.445238], [1.695955, -0.357639, -0.893050, -0.445266]],
        [[1.695948, -0.357634, -0.893082, -0.445233], [1.695950, -0.357635, -0.893077, -0.445238]],
        [[1.695951, -0.357636, -0.893069, -0.445246], [1.695955, -0.357639, -0.893052, -0.445264]],
        [[1.695952, -0.357636, -0.893066, -0.445249], [1.695957, -0.357641, -0.893041, -0.445276]],
        [[1.695946, -0.357632, -0.893095, -0.445220], [1.695952, -0.357637, -0.893065, -0.445251]],
    ],
    (6, True): [[[1.695955, -0.357639, -0.893051, -0.445265]] * 2] * 5,
}
DECODERS = {
    (6, False, "relu"): [
        [[2.42794, 0.026164, -0.60263, -0.0747591], [2.43113, 0.0279516, -0.600376, -0.0736896]]
    ]
    * 3,
    (6, True, "relu"): [
        [[1.69559, -0.357291, -0.894741, -0.443553], [1.69571, -0.357363, -0.894154, -0.444196]]
    ]
    * 3,
    (6, False, "gelu"): [
        [[2.41859, 0.0328114, -0.609269, -0.0560386], [2.42138, 0.034598, -0.607316, -0.0546574]]
    ]
    * 3,
    (6, True, "gelu"): [
        [[1.69298, -0.355163, -0.906375, -0.431439], [1.69305, -0.355195, -0.906062, -0.431791]]
    ]
    * 3,
}
PRINTED = 3e-6  # six decimals, of numbers computed in float32


def sequence_first(rows) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).transpose(0, 1)


def cosines(module: nn.Module) -> nn.Module:
    """Fill every parameter as torch's tests do; there, queries, keys and values have one matrix."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.arange(parameter.numel()).double().cos().view_as(parameter))
        for attention in module.modules():
            if isinstance(attention, MultiHeadAttention):
                parts = attention.w_q, attention.w_k, attention.w_v
                for kind in ("weight", "bias"):
                    packed = torch.arange(3 * getattr(parts[0], kind).numel()).double().cos()
                    for part, values in zip(parts, packed.chunk(3)):
                        getattr(part, kind).copy_(values.view_as(getattr(part, kind)))
    return module.double()


def visible(hidden: list[list[int]] | None, batch: int, length: int) -> Tensor | None:
    """torch hides by True, we show by True."""
    if hidden is None:
        return None
    mask = torch.ones(batch, 1, 1, length, dtype=torch.bool)
    for sentence, position in hidden:
        mask[sentence, 0, 0, position] = False
    return mask


@pytest.mark.parametrize("inputs, activation, hidden, printed", ENCODER_LAYER.values(), ids=ENCODER_LAYER)
def test_encoder_layer_gives_the_numbers_in_torchs_tests(inputs, activation, hidden, printed):
    layer = cosines(
        EncoderLayer(LayerConfig(d_model=4, n_heads=2, d_ff=16, dropout=0.0, activation=activation))
    )
    x = sequence_first(inputs)
    assert_close(layer(x, visible(hidden, *x.shape[:2])), sequence_first(printed), PRINTED)


@pytest.mark.parametrize(
    "inputs, memory, activation, hidden, hidden_memory, printed", DECODER_LAYER.values(), ids=DECODER_LAYER
)
def test_decoder_layer_gives_the_numbers_in_torchs_tests(
    inputs, memory, activation, hidden, hidden_memory, printed
):
    layer = cosines(
        DecoderLayer(LayerConfig(d_model=4, n_heads=2, d_ff=16, dropout=0.0, activation=activation))
    )
    x, memory = sequence_first(inputs), sequence_first(memory)
    masks = visible(hidden, *x.shape[:2]), visible(hidden_memory, *memory.shape[:2])
    assert_close(layer(x, memory, *masks), sequence_first(printed), PRINTED)


def stack_config(n_layers: int, final_norm: bool, activation: str = "relu") -> TransformerConfig:
    sizes = {"d_model": 4, "n_heads": 2, "d_ff": 16, "dropout": 0.0, "n_layers": n_layers}
    return TransformerConfig(9, 9, **sizes, final_norm=final_norm, activation=activation)


def with_fresh_norm(stack: nn.Module) -> nn.Module:
    """There the norm on top is added after the layers were filled, and starts as 1 and 0."""
    if isinstance(stack.norm, LayerNorm):
        nn.init.ones_(stack.norm.weight)
        nn.init.zeros_(stack.norm.bias)
    return stack


@pytest.mark.parametrize("n_layers, final_norm", ENCODERS)
def test_encoder_gives_the_numbers_in_torchs_tests(n_layers, final_norm):
    encoder = with_fresh_norm(cosines(Encoder(stack_config(n_layers, final_norm))))
    found = encoder(sequence_first(IN_ENCODER), visible(HIDDEN, 2, 5))
    assert_close(found, sequence_first(ENCODERS[n_layers, final_norm]), PRINTED)


@pytest.mark.parametrize("n_layers, final_norm, activation", DECODERS)
def test_decoder_gives_the_numbers_in_torchs_tests(n_layers, final_norm, activation):
    decoder = with_fresh_norm(cosines(Decoder(stack_config(n_layers, final_norm, activation))))
    found = decoder(sequence_first(IN_DECODER), sequence_first(IN_ENCODER))
    assert_close(found, sequence_first(DECODERS[n_layers, final_norm, activation]), 2 * PRINTED)


def test_encoder_with_a_mask_of_its_own_gives_the_number_in_torchs_tests():
    """There test_transformerencoder_square_input: as many sentences as positions."""
    encoder = cosines(Encoder(stack_config(2, final_norm=False)))
    x = torch.arange(16, dtype=torch.float64).view(2, 2, 4)
    found = encoder(x, torch.tensor([[[[True, False], [True, True]]]]))
    first = [2.420306205749512, 0.017629241570830, -0.607857942581177, -0.085519507527351]
    second = [2.419836044311523, 0.017548924311996, -0.608187675476074, -0.085347734391689]
    assert_close(found, torch.tensor([[first, first], [second, second]]).double(), PRINTED)


@pytest.mark.parametrize("hidden", [False, True], ids=["all", "with hidden positions"])
def test_two_stacks_give_the_numbers_in_torchs_tests(hidden):
    """Two encoder layers and one decoder layer, a norm on top of each: `torch.nn.Transformer`."""
    encoder = cosines(Encoder(stack_config(2, final_norm=True)))
    decoder = cosines(Decoder(stack_config(1, final_norm=True)))
    src = torch.arange(1, 25, dtype=torch.float64).view(3, 2, 4).transpose(0, 1)
    tgt = torch.arange(1, 17, dtype=torch.float64).view(2, 2, 4).transpose(0, 1)
    rows = [[2.695875, 0.347114, -0.044355, -0.549541], [2.696091, 0.347015, -0.044770, -0.548522]]
    if hidden:
        rows[0] = [2.696114, 0.347004, -0.044813, -0.548417]
    memory = encoder(src, causal_mask(3))
    found = decoder(tgt, memory, visible([[0, 0], [1, 1]], 2, 2) if hidden else None)
    assert_close(found, sequence_first([rows, rows]), PRINTED)
