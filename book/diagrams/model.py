"""The diagrams of Chapters 1 to 5: the model."""

from __future__ import annotations

from pencil import Box, Diagram, Point

SOURCE = ["este", "é", "um", "problema"]
TARGET = ["⟨start⟩", "this", "is", "a", "problem", "⟨end⟩"]
BLOCK = 116  # from one sublayer to the next


def gradient_steps() -> Diagram:
    """Chapter 1: forward from the parameters to the loss, and back."""
    d = Diagram(470, 190)
    y = 84
    parameters = d.box(50, y, "w, b", "weight", 84)
    data = d.box(50, 160, "x", "plain", 84)
    score = d.box(190, y, "z = x·w + b", "logits", 116)
    probability = d.box(325, y, "p = σ(z)", "plain", 88)
    loss = d.box(433, y, "ℓ", "plain", 58)
    label = d.box(433, 160, "y", "plain", 58)
    d.arrow(parameters.right, score.left)
    d.arrow(data.right, (150, 160), (150, 101))
    d.arrow(score.right, probability.left)
    d.arrow(probability.right, loss.left)
    d.arrow(label.top, loss.bottom)
    for start, end, text in ((433, 333, "∂ℓ/∂p"), (317, 198, "∂ℓ/∂z = p − y"), (182, 50, "∂ℓ/∂w, ∂ℓ/∂b")):
        d.arrow((start, 67), (start, 36), (end, 36), (end, 67), kind="query")
        d.text((start + end) / 2, 20, text)
    return d


def lookup() -> Diagram:
    """Chapter 2: from ids to vectors that know what they are and where."""
    d = Diagram(470, 330)
    ids = [4, 7, 5, 9]
    for row, (word, number) in enumerate(zip(SOURCE, ids, strict=True)):
        y = 62 + 40 * row
        d.text(78, y, word, "end")
        d.box(112, y, str(number), "plain", 34, 26)
    d.text(112, 226, "[S]", "code")
    d.text(112, 26, "ids")
    table = d.tensor(240, 122, "E", "weight", 84, 190)
    d.text(240, 14, "[V, d_model]", "code")
    for row in range(4):
        d.arrow((131, 62 + 40 * row), (197, 62 + 40 * row))
    d.text(390, 26, "rows × √d_{model}")
    for row in range(4):
        d.box(380, 62 + 40 * row, "", "plain", 120, 20, radius=0)
        d.arrow((table.right[0], 62 + 40 * row), (318, 62 + 40 * row))
    rows = d.frame(380, 122, 136, 156)
    plus = d.plus(380, 246)
    d.arrow(rows.bottom, plus.top)
    positions = d.box(222, 246, "positions 0, 1, 2, 3", "plain", 160, 30)
    d.arrow(positions.right, plus.left)
    d.arrow(plus.bottom, (380, 292))
    d.text(380, 308, "[S, d_model]", "code")
    return d


def queries_keys_values() -> Diagram:
    """Chapter 3: what asks, what is compared with, what is fetched."""
    d = Diagram(470, 260)
    reader = d.tensor(70, 48, "X", "plain", 100, 46, "[T, d_model]")
    source = d.tensor(70, 172, "M", "memory", 100, 66, "[S, d_model]")
    rows = (("Q", "query", "[T, d_k]", 48), ("K", "key", "[S, d_k]", 130), ("V", "value", "[S, d_v]", 214))
    for name, kind, shape, y in rows:
        origin = reader if name == "Q" else source
        weight = d.box(228, y, f"W^{{{name}}}", "weight", 54, 40, radius=0)
        result = d.tensor(360, y, name, kind, 48, origin.height)
        d.text(392, y, shape, "code start")
        bend = () if y == origin.y else ((160, origin.y), (160, y))
        d.arrow(origin.right, *bend, weight.left)
        d.arrow(weight.right, result.left, kind=kind)
    return d


def scaled_scores() -> Diagram:
    """Chapter 3: from queries and keys to weights, and with the values to the context."""
    d = Diagram(470, 340)
    d.tensor(58, 66, "Q", "query", 54, 84, "[T, d_k]")
    d.text(108, 66, "×")
    key = d.tensor(180, 66, "K^{⊤}", "key", 104, 54, "[d_k, S]")
    scores = d.tensor(390, 66, "scores", "attention", 104, 84, "[T, S]")
    d.arrow(key.right, scores.left)
    d.text(286, 48, "÷ √d_{k}")
    weights = d.tensor(390, 252, "weights", "attention", 104, 84, "[T, S]")
    d.arrow((390, 132), weights.top)
    d.text(380, 158, "mask", "end")
    d.text(380, 180, "softmax over S", "end")
    d.text(316, 252, "×")
    value = d.tensor(256, 252, "V", "value", 54, 104, "[S, d_v]")
    context = d.tensor(70, 252, "context", "plain", 78, 84, "[T, d_v]")
    d.arrow(value.left, context.right)
    return d


def heads() -> Diagram:
    """Chapter 3: one projection, split into heads, and joined again."""
    d = Diagram(470, 374)

    def striped(x: float, y: float, width: float, height: float, kind: str, down: bool = False) -> None:
        for head in range(4):
            part = (head - 1.5) / 4
            if down:
                d.box(x, y + part * height, str(head), kind, width, height / 4, radius=0)
            else:
                d.box(x + part * width, y, str(head), kind, width / 4, height, radius=0)

    def pages(x: float, y: float, kind: str) -> None:
        for head in reversed(range(4)):
            d.box(
                x + 13 * (head - 1.5),
                y - 13 * (head - 1.5),
                str(head) if head == 0 else "",
                kind,
                36,
                66,
                radius=0,
            )

    d.tensor(62, 80, "X", "plain", 80, 62, "[T, d_model]")
    d.text(116, 80, "×")
    striped(176, 80, 96, 96, "weight")
    d.text(176, 18, "W^{Q}")
    d.text(176, 141, "[d_model, d_model]", "code")
    d.text(238, 80, "=")
    striped(300, 80, 96, 62, "query")
    d.text(300, 18, "Q")
    d.text(300, 124, "[T, d_model]", "code")
    d.arrow((350, 80), (392, 80))
    d.text(370, 66, "split")
    pages(428, 80, "query")
    d.text(424, 152, "[H, T, d_k]", "code")
    d.arrow((428, 168), (428, 226))
    d.text(352, 196, "each head attends", "over")
    pages(428, 284, "attention")
    d.text(424, 356, "[H, T, d_k]", "code")
    d.arrow((388, 284), (350, 284))
    d.text(370, 270, "join")
    striped(300, 284, 96, 62, "attention")
    d.text(300, 328, "[T, d_model]", "code")
    d.text(238, 284, "×")
    striped(176, 284, 96, 96, "weight", down=True)
    d.text(176, 222, "W^{O}")
    d.text(176, 345, "[d_model, d_model]", "code")
    d.arrow((124, 284), (106, 284))
    d.tensor(62, 284, "output", "plain", 80, 62, "[T, d_model]")
    return d


def masks() -> Diagram:
    """Chapter 3: padding hides columns, causality hides what lies above the diagonal."""
    d = Diagram(470, 276)
    source, target = [*SOURCE, "⟨pad⟩", "⟨pad⟩"], TARGET[:5]
    panels = ((source, "padding", lambda t, s: s < 4), (target, "causal", lambda t, s: s <= t))
    for (words, name, allowed), x in zip(panels, (152, 374), strict=True):
        size, count = 24, len(words)
        kinds = [["attention" if allowed(t, s) else "" for s in range(count)] for t in range(count)]
        top = 106
        d.grid(x, top + size * count / 2, kinds, size)
        for i, word in enumerate(words):
            d.text(x - size * count / 2 - 8, top + size * (i + 0.5), word, "end")
            d.text(x + size * (i - count / 2 + 0.5), top - 8, word, "start", turn=-50)
        d.text(x, top + size * 6 + 16, name, "bold")
    return d


def _residual(
    d: Diagram, x: float, y: float, text: str, kind: str, side: int, norm_first: bool
) -> tuple[Box, Point]:
    """Draw a sublayer with its residual, from (x, y) upward; return its box and where the stream goes on."""
    width = 164
    if norm_first:
        norm = d.box(x, y - 28, "norm", "norm", width, 22)
        box = d.box(x, y - 66, text, kind, width, 32)
        d.arrow((x, y), norm.bottom)
        d.arrow(norm.top, box.bottom)
        plus = d.plus(x, y - 100)
        end = (x, y - BLOCK)
        d.arrow(plus.top, end, tip=False)
    else:
        box = d.box(x, y - 34, text, kind, width, 32)
        d.arrow((x, y), box.bottom)
        plus = d.plus(x, y - 68)
        norm = d.box(x, y - 97, "norm", "norm", width, 22)
        d.arrow(plus.top, norm.bottom)
        end = (x, y - BLOCK)
        d.arrow(norm.top, end, tip=False)
    d.arrow(box.top, plus.bottom)
    around = x + side * (width / 2 + 14)
    d.arrow((x, y - 8), (around, y - 8), (around, plus.y), plus.right if side > 0 else plus.left)
    return box, end


def _layer(sublayers: list[tuple[str, str]]) -> Diagram:
    """A layer in both orders of the norm, side by side."""
    height = BLOCK * len(sublayers) + 100
    d = Diagram(470, height)
    for x, side, norm_first, name in ((118, -1, False, "post-norm"), (352, 1, True, "pre-norm")):
        d.text(x, height - 12, name, "bold")
        d.text(x, height - 34, "x")
        at = (x, height - 60)
        d.arrow((x, height - 46), at, tip=False)
        for text, kind in sublayers:
            box, at = _residual(d, x, at[1], text, kind, side, norm_first)
            if "memory" in text:
                inner = box.right if side < 0 else box.left
                d.arrow((235, inner[1]), inner, kind="memory")
                d.arrow((235, height - 46), (235, inner[1]), kind="memory", tip=False)
        d.arrow(at, (x, 26))
        d.text(x, 14, "y")
    return d


def norm_orders() -> Diagram:
    """Chapter 4: the norm on the stream, or on the copy that the sublayer reads."""
    d = Diagram(470, 264)
    for top, name, branch in (
        (0, "post-norm", ["sublayer", "dropout"]),
        (132, "pre-norm", ["norm", "sublayer", "dropout"]),
    ):
        stream, above = top + 96, top + 42
        d.arrow((34, stream), (446, stream), wide=True)
        d.text(18, stream, "x")
        d.text(460, stream, "y")
        d.arrow((60, stream), (60, above), (370, above), (370, stream - 10))
        for i, part in enumerate(branch):
            kind = "norm" if part == "norm" else "attention" if part == "sublayer" else "plain"
            d.box(215 + 90 * (i - (len(branch) - 1) / 2), above, part, kind, 76, 30)
        d.plus(370, stream)
        if len(branch) == 2:
            d.box(412, stream, "norm", "norm", 48, 28)
        d.text(60, top + 16, name, "bold start")
    return d


def encoder_layer() -> Diagram:
    """Chapter 4: an encoder layer, the norm on the stream or before the sublayer."""
    return _layer([("self-attention", "attention"), ("feed-forward", "plain")])


def decoder_layer() -> Diagram:
    """Chapter 4: a decoder layer in both orders."""
    d = _layer(
        [
            ("self-attention, causal", "attention"),
            ("attention to memory", "attention"),
            ("feed-forward", "plain"),
        ]
    )
    d.text(235, d.height - 34, "memory")
    return d


def transformer() -> Diagram:
    """The whole model, as the paper prints it, with residuals and norms."""
    d = Diagram(480, 712)
    left, right, bottom = 122, 350, 522
    for x, words, shape in ((left, " ".join(SOURCE), "[B, S]"), (right, " ".join(TARGET[:4]), "[B, T]")):
        d.text(x, 696, words)
        d.text(x, 674, shape, "code")
        embedding = d.box(x, 628, "embedding × √d_{model}", "weight", 164, 32)
        d.arrow((x, 664), embedding.bottom)
        plus = d.plus(x, 582)
        d.arrow(embedding.top, plus.bottom)
        outer = -1 if x == left else 1
        d.text(x + outer * 58, 582, "positions")
        d.arrow((x + outer * 26, 582), plus.left if outer < 0 else plus.right)
        d.arrow(plus.top, (x, bottom), tip=False)
    d.frame(left, bottom - BLOCK + 6, 206, 2 * BLOCK + 14)
    d.frame(right, bottom - 1.5 * BLOCK + 6, 206, 3 * BLOCK + 14)
    at = (left, bottom)
    for text, kind in (("self-attention", "attention"), ("feed-forward", "plain")):
        _, at = _residual(d, left, at[1], text, kind, -1, False)
    d.text(left - 103, at[1] - 20, "N × encoder", "start")
    top = at[1]
    at = (right, bottom)
    _, at = _residual(d, right, at[1], "causal self-attention", "attention", 1, False)
    cross, at = _residual(d, right, at[1], "attention to memory", "attention", 1, False)
    _, at = _residual(d, right, at[1], "feed-forward", "plain", 1, False)
    d.text(right - 103, at[1] - 20, "N × decoder", "start")
    d.arrow((left, top), (left, top - 52), (236, top - 52), (236, cross.y), cross.left, kind="memory")
    d.text(left - 4, top - 66, "memory", "end")
    d.text(left + 2, top - 66, "[B, S, d_model]", "code start")
    project = d.box(right, 100, "projection on the table", "weight", 170, 32)
    d.arrow(at, project.bottom)
    d.arrow(project.top, (right, 66), kind="logits")
    d.box(right, 50, "logits  [B, T, V]", "logits", 150, 28)
    d.text(right, 18, " ".join(TARGET[1:5]))
    return d


def shift() -> Diagram:
    """Chapter 5: what is read, and what is predicted in the same column."""
    d = Diagram(470, 244)
    for column in range(5):
        x = 48 + 93.5 * column
        d.box(x, 192, TARGET[column], "plain", 80, 30)
        d.arrow((x, 177), (x, 139))
        d.arrow((x, 105), (x, 67), kind="logits")
        d.box(x, 52, TARGET[column + 1], "logits", 80, 30)
    d.box(235, 122, "causal decoder: column t sees columns 0 to t", "attention", 454, 34)
    d.text(8, 226, "read, tgt[:, :-1]", "code start")
    d.text(8, 18, "predicted, tgt[:, 1:]", "code start")
    return d


def tied_tables() -> Diagram:
    """Chapter 5: one parameter that is read twice and compared with once."""
    d = Diagram(470, 270)
    table = d.tensor(235, 136, "E", "weight", 96, 108)
    d.text(235, 206, "[V, d_model]", "code")
    source = d.box(72, 196, "encoder reads\nrow × √d_{model}", "plain", 128, 48)
    target = d.box(398, 196, "decoder reads\nrow × √d_{model}", "plain", 128, 48)
    for box, words in ((source, "source ids"), (target, "target ids")):
        d.text(box.x, 256, words)
        d.arrow((box.x, 246), box.bottom)
    d.arrow((187, 160), (72, 160), source.top, kind="weight")
    d.arrow((283, 160), (398, 160), target.top, kind="weight")
    project = d.box(235, 44, "h E^{⊤}", "logits", 96, 34)
    d.arrow(table.top, project.bottom, kind="weight")
    d.text(60, 44, "hidden h")
    d.arrow((96, 44), project.left)
    d.arrow(project.right, (376, 44), kind="logits")
    d.text(410, 44, "logits")
    return d
