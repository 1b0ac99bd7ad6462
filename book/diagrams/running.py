"""The diagrams of Chapters 6 to 18: training, decoding, speed and what follows."""

from __future__ import annotations

from pencil import Box, Diagram


def smoothed_target() -> Diagram:
    """Chapter 6: the smoothed target is a mixture, for V = 4 and a share of 0.2."""
    d = Diagram(470, 178)
    base, full = 130, 96
    panels = (
        (104, "0.8 ×", "the right token", (1.0, 0.0, 0.0, 0.0)),
        (284, "+  0.2 ×", "all tokens alike", (0.25, 0.25, 0.25, 0.25)),
        (412, "=", "what we want", (0.85, 0.05, 0.05, 0.05)),
    )
    for x, sign, name, heights in panels:
        d.text(x - 60, 84, sign, "end")
        for token, height in enumerate(heights):
            across = x + 28 * (token - 1.5)
            if height:
                kind = "logits" if token == 0 else "plain"
                d.box(across, base - full * height / 2, "", kind, 20, full * height, radius=0)
            d.text(across, base + 12, str(token))
        d.arrow((x - 56, base), (x + 56, base), tip=False)
        d.text(x, base + 34, name)
    for token, height in enumerate(panels[2][3]):
        d.text(412 + 28 * (token - 1.5), base - full * height - 10, f"{height:.2f}".removeprefix("0"))
    return d


def cached_step() -> Diagram:
    """Chapter 8: a decoding step reads one token, and attends to what is kept."""
    d = Diagram(470, 368)
    d.box(58, 56, "a", "plain", 76, 30)
    d.text(58, 26, "last token")
    d.arrow((58, 71), (58, 117))
    new = d.tensor(58, 128, "x", "plain", 76, 22, "[B, 1, d_model]")
    rows = (("query", "q", 56), ("key", "k", 128), ("value", "v", 262))
    made = {}
    for kind, name, y in rows:
        made[kind] = d.box(196, y, name, kind, 56, 22, radius=0)
        bend = () if y == new.y else ((134, new.y), (134, y))
        d.arrow(new.right, *bend, made[kind].left, kind=kind)
    size, kept = 22, ["⟨start⟩", "this", "is"]
    ends = {}
    for kind, letter, y in (("key", "K", 128), ("value", "V", 262)):
        for i, word in enumerate([*kept, "a"]):
            place = y + (i - 3) * size
            d.box(318, place, "", kind if i == 3 else "memory", 64, size - 2, radius=0)
            d.text(276, place, "" if i == 3 else word, "end")
        d.text(318, y + 24, f"{letter}  [B, H, t, d_k]", "code")
        d.arrow(made[kind].right, (286, y), kind=kind)
        ends[kind] = Box(318, y - 1.5 * size, 64, 4 * size)
    weights = d.box(424, 95, "softmax", "attention", 76, 34)
    context = d.box(424, 229, "Σ", "attention", 76, 34)
    d.arrow(made["query"].right, (232, 56), (232, 24), (424, 24), weights.top, kind="query")
    d.arrow(ends["key"].right, weights.left, kind="key")
    d.arrow(weights.bottom, context.top, label="[B, H, 1, t]", kind="attention", at=(416, 184))
    d.arrow(ends["value"].right, context.left, kind="value")
    d.arrow(context.bottom, (424, 300))
    d.text(408, 314, "[B, H, 1, d_k]", "code")
    d.box(30, 346, "", "memory", 20, 16, radius=0)
    d.text(46, 346, "kept from earlier steps", "start")
    d.box(252, 346, "", "key", 20, 16, radius=0)
    d.box(276, 346, "", "value", 20, 16, radius=0)
    d.text(292, 346, "computed in this step", "start")
    return d


def greedy_misses() -> Diagram:
    """Chapter 8: the more probable first word leads away from the most probable translation."""
    d = Diagram(470, 196)
    start = d.box(40, 100, "⟨start⟩", "plain", 68, 30)
    rows = (("a", 0.6, "cat", 0.4, 0.8, 50, "query"), ("the", 0.4, "cat", 0.9, 0.8, 150, "logits"))
    for first, p, second, q, r, y, kind in rows:
        one = d.box(158, y, first, kind, 56, 30)
        two = d.box(276, y, second, kind, 56, 30)
        end = d.box(396, y, "⟨end⟩", kind, 62, 30)
        d.arrow(start.right, (96, 100), (96, y), one.left, kind=kind)
        d.arrow(one.right, two.left, kind=kind)
        d.text(216, y - 14, f"× {q}")
        d.arrow(two.right, end.left, kind=kind)
        d.text(334, y - 14, f"× {r}")
        d.text(396, y + 28, f"= {p * q * r:.3f}", "bold")
        d.text(276, y + 28, f"{p * q:.2f}")
        d.text(158, y + 28, f"{p:.1f}")
    d.text(130, 18, "greedy search goes this way", "start")
    return d


def beam_steps() -> Diagram:
    """Chapter 8: three steps of a beam of 2; every step ranks the candidates and keeps two."""
    d = Diagram(470, 290)
    columns = (
        ("step 1", [("a", 0.6), ("the", 0.4)]),
        ("step 2", [("the cat", 0.36), ("a cat", 0.24), ("a dog", 0.21), ("a ⟨end⟩", 0.15)]),
        (
            "step 3",
            [
                ("the cat ⟨end⟩", 0.288),
                ("a cat ⟨end⟩", 0.192),
                ("the cat sleeps", 0.072),
                ("a cat sleeps", 0.048),
            ],
        ),
    )
    places = ((52, 80), (206, 112), (392, 148))
    origins = ((), (1, 0, 0, 0), (0, 1, 0, 1))
    before: list[Box] = []
    for (name, candidates), (x, width), origin in zip(columns, places, origins, strict=True):
        d.text(x, 18, name, "bold")
        boxes = []
        for rank, (words, p) in enumerate(candidates):
            y = 64 + 52 * rank
            kept = rank < 2
            ended = kept and "end" in words
            kind = "value" if ended else "logits" if kept else "norm"
            boxes.append(d.box(x, y, f"{words}\n{p:.3f}".rstrip("0"), kind, width, 42))
        for box, parent in zip(boxes, origin, strict=False):
            d.arrow(before[parent].right, box.left)
        before = boxes
    for x, kind, meaning in (
        (20, "logits", "goes on"),
        (130, "value", "has ended"),
        (252, "norm", "is dropped"),
    ):
        d.box(x, 270, "", kind, 20, 16)
        d.text(x + 16, 270, meaning, "start")
    return d


def step_memory() -> Diagram:
    """Chapter 10: what a training step holds, and when."""
    d = Diagram(474, 318)
    times = ["1", "2", "3", "4", "", "4", "3", "2", "1", ""]
    size, left, top = 30, 174, 62
    rows = [
        ("weights, averages", "weight", range(10)),
        ("gradients", "query", range(4, 10)),
        ("logits", "logits", range(4, 5)),
        ("saved in layer 4", "attention", range(3, 6)),
        ("saved in layer 3", "attention", range(2, 7)),
        ("saved in layer 2", "attention", range(1, 8)),
        ("saved in layer 1", "attention", range(9)),
    ]
    kinds = [[kind if t in held else "" for t in range(10)] for _, kind, held in rows]
    height = size * len(rows)
    d.grid(left - size / 2 + size * 5, top + height / 2, kinds, size)
    for row, (name, _, _) in enumerate(rows):
        d.text(left - size / 2 - 8, top + size * (row + 0.5), name, "end")
    for t, name in enumerate(times):
        d.text(left + size * t, top - 12, name)
    for t, name in ((4, "loss"), (9, "step")):
        d.text(left + size * t, top - 12, name)
    d.text(left + size * 1.5, top - 36, "forward")
    d.text(left + size * 6.5, top - 36, "backward")
    y = top + height + 18
    d.arrow((left - size / 2, y), (left + size * 9.5, y))
    d.text(left + size * 4.5, y + 20, "time")
    return d


def resumption() -> Diagram:
    """Chapter 11: a run without a break, and one that is cut off and goes on from its checkpoint."""
    d = Diagram(470, 250)
    left, step = 84, 8.9

    def at(update: float) -> float:
        return left + step * update

    for update in (0, 10, 20, 30, 40):
        d.text(at(update), 18, str(update))
        d.arrow((at(update), 30), (at(update), 40), tip=False)
    d.text(8, 18, "update", "start")
    d.arrow((at(0), 62), (at(40), 62), kind="attention")
    d.text(at(15), 78, "without a break", "over")
    d.arrow((at(0), 122), (at(28), 122), kind="attention")
    d.text(at(29.3), 122, "×", "bold")
    d.text(at(34.5), 122, "power cut", "over")
    for update in (10, 20):
        d.box(at(update), 122, "", "weight", 20, 20)
    d.text(at(15), 104, "checkpoints", "over")
    d.arrow((at(20), 132), (at(20), 176), kind="weight")
    d.arrow((at(20), 182), (at(40), 182), kind="attention")
    d.text(at(30), 198, "the same updates again", "over")
    d.text(at(19), 154, "resume", "end over")
    d.arrow((at(40) + 6, 62), (456, 62), (456, 182), (at(40) + 6, 182), kind="value", tip=False)
    d.text(448, 122, "=", "bold over")
    d.box(30, 232, "", "weight", 20, 16)
    d.text(46, 232, "weights, averages, place in the data, random numbers", "start")
    return d


def data_parallel() -> Diagram:
    """Chapter 11: two processes make one update."""
    d = Diagram(470, 412)
    for x, process in ((112, 0), (358, 1)):
        d.frame(x, 200, 212, 384)
        d.text(x, 24, f"process {process}", "bold")
        data = d.box(x, 62, "its own batches", "plain", 150, 30)
        model = d.box(x, 118, "weights θ", "weight", 150, 30)
        loss = d.box(x, 174, f"L_{{{process}}}, and n_{{{process}}} tokens", "logits", 150, 30)
        gradient = d.box(x, 264, f"W ∇L_{{{process}}} / N", "query", 150, 30)
        mean = d.box(x, 352, "θ after Adam's step", "weight", 150, 30)
        d.arrow(data.bottom, model.top)
        d.arrow(model.bottom, loss.top)
        d.arrow(loss.bottom, gradient.top, kind="query")
        d.arrow(gradient.bottom, mean.top, kind="query")
    d.arrow((112, 214), (358, 214), kind="logits", tip=False)
    d.arrow((112, 308), (358, 308), kind="query", tip=False)
    d.box(235, 214, "add: N = n_{0} + n_{1}", "norm", 160, 28)
    d.box(235, 308, "mean of both gradients", "norm", 172, 28)
    d.text(235, 352, "=", "bold")
    d.text(235, 118, "=", "bold")
    return d


def bucketed_batches() -> Diagram:
    """Chapter 12: batches as they come, and sorted under a budget of tokens."""
    d = Diagram(470, 334)
    size = 21

    def batch(x: float, y: float, lengths: list[int]) -> float:
        longest = max(lengths)
        kinds = [["attention" if s < n else "" for s in range(longest)] for n in lengths]
        height = size * len(lengths)
        d.grid(x + size * longest / 2, y + height / 2, kinds, size)
        return y + height + 14

    columns = (
        (20, "as they come", [[3, 8, 2, 5, 7], [2, 4, 3, 6, 2]]),
        (254, "sorted, at most 16 places", [[2, 2, 2, 3, 3], [4, 5], [6, 7], [8]]),
    )
    for x, name, batches in columns:
        d.text(x, 18, name, "bold start")
        y = 38.0
        for lengths in batches:
            y = batch(x, y, lengths)
        places = sum(len(lengths) * max(lengths) for lengths in batches)
        empty = places - sum(map(sum, batches))
        d.text(x, 316, f"{empty} of {places} places are padding", "start")
    return d


def kernels_flow() -> Diagram:
    """Under the hood: from a model to the kernels that compute it."""
    d = Diagram(476, 340)
    model = d.box(70, 34, "Transformer", "plain", 112, 34)
    check = d.box(242, 34, "as configured?", "norm", 124, 34)
    error = d.box(410, 34, "TypeError,\nby name", "logits", 104, 44)
    fast = d.box(242, 112, "FastTransformer", "attention", 132, 34)
    d.arrow(model.right, check.left)
    d.arrow(check.right, error.left, label="no", look="", dashed=True)
    d.arrow(check.bottom, fast.top, label="yes", look="")
    d.arrow(model.bottom, (70, 112), fast.left, kind="weight")
    d.text(124, 98, "its parameters", "")
    columns = (78, 124), (242, 124), (404, 112)
    names = "forward", "loss in chunks", "search step"
    uses = [
        d.box(x, 190, name, "attention", width, 34) for (x, width), name in zip(columns, names, strict=True)
    ]
    for use in uses:
        bend = () if use.x == fast.x else ((fast.x, 152), (use.x, 152))
        d.arrow(fast.bottom, *bend, use.top)
    table = d.box(242, 256, "fastest(x, weight)", "weight", 436, 34, look="code")
    for use in uses:
        d.arrow(use.bottom, (use.x, table.y - 17))
    for (x, width), name in zip(columns[::2], ("oneDNN", "F.linear"), strict=True):
        kernel = d.box(x, 318, name, "plain", width, 34)
        d.arrow((x, table.y + 17), kernel.top)
    return d


def two_programs() -> Diagram:
    """Under the hood, exchange: the weights are carried over, and both programs compute the same outputs."""
    d = Diagram(474, 330)
    d.text(112, 18, "ours", "bold")
    d.text(362, 18, "torch.nn", "bold")
    rows = (("w_q", "query", 52), ("w_k", "key", 88), ("w_v", "value", 124))
    for third, (name, kind, y) in enumerate(rows):
        ours = d.box(112, y, name, kind, 96, 28, radius=0, look="code")
        stacked = 70 + 28 * third
        d.box(362, stacked, "", kind, 124, 28, radius=0)
        d.arrow(ours.right, (218, y), (258, stacked), (300, stacked), kind=kind)
    d.text(362, 98, "in_proj_weight", "code")
    d.text(238, 34, "φ", "bold")
    left = d.box(112, 206, "f(x; θ)", "attention", 120, 36)
    right = d.box(362, 206, "f ′(x; φ(θ))", "attention", 120, 36)
    d.arrow((112, 140), left.top, label="θ", at=(96, 164), look="")
    d.arrow((362, 142), right.top, label="φ(θ)", at=(390, 164), look="")
    x = d.box(237, 206, "x", "plain", 44, 30)
    d.arrow(x.left, left.right)
    d.arrow(x.right, right.left)
    one = d.box(112, 290, "outputs\nand gradients", "logits", 124, 48)
    other = d.box(362, 290, "outputs\nand gradients", "logits", 124, 48)
    d.arrow(left.bottom, one.top)
    d.arrow(right.bottom, other.top)
    d.text(237, 290, "equal", "bold")
    d.arrow((206, 290), one.right)
    d.arrow((268, 290), other.left)
    return d


def exchange() -> Diagram:
    """Under the hood: models come in by one gate, and leave by another."""
    d = Diagram(474, 420)
    d.text(12, 24, "in", "bold start")
    for x, name in ((108, "torch.nn"), (244, "Marian, M2M-100"), (380, "Llama")):
        source = d.box(x, 24, name, "memory", 128, 30)
        d.arrow(source.bottom, (x, 67))
    d.box(237, 82, "settings, names, shapes, types", "plain", 440, 30)
    plan = d.box(150, 142, "a plan on the meta device", "weight", 222, 30)
    d.arrow((150, 97), plan.top)
    d.arrow((310, 97), (310, 142), (412, 142), (412, 178), dashed=True, kind="logits")
    d.text(412, 190, "refused by name")
    numbers = d.box(150, 206, "numbers, read and finite", "plain", 222, 30)
    d.arrow(plan.bottom, numbers.top, label="all fit", look="over")
    d.arrow(numbers.right, (326, 206), (326, 190), (350, 190), dashed=True, kind="logits", tip=False)
    model = d.box(150, 268, "Transformer, LanguageModel", "attention", 222, 32)
    d.arrow(numbers.bottom, model.top, label="copied", look="over")
    d.box(237, 324, "as configured, and finite", "plain", 440, 30)
    d.arrow(model.bottom, (150, 309))
    d.arrow((412, 309), (412, 202), dashed=True, kind="logits")
    d.text(12, 380, "out", "bold start")
    for x, name in ((108, "torch.nn"), (244, "Marian, M2M-100"), (380, "CTranslate2")):
        folder = d.box(x, 380, name, "memory", 128, 30)
        d.arrow((x, 339), folder.top)
    d.text(312, 408, "a whole folder, or none")
    return d


def modern_layer() -> Diagram:
    """Chapter 15: a decoder-only layer with the parts of 2017, and one with those of today."""
    d = Diagram(474, 400)
    columns = (
        (124, "2017, norms first", ("positions are added", "norm", "attention\nH heads of K and V", "norm",
                       "ReLU(x W_{1}) W_{2}"), False),
        (362, "today", ("nothing is added", "RMS norm", "attention, q and k turned\nfew heads of K and V",
                        "RMS norm", "(φ(x W_{g}) ⊙ x W_{1}) W_{2}"), True),
    )  # fmt: skip
    for x, name, (start, first, attention, second, network), new in columns:
        d.text(x, 16, name, "bold")
        base = d.box(x, 374, start, "norm" if new else "memory", 196, 30)
        stream = x - 108
        d.arrow((x - 98, 374), (stream, 374), (stream, 34), wide=True)
        for y, norm, part, kind, height in (
            (252, first, attention, "attention", 50),
            (98, second, network, "value" if new else "plain", 36),
        ):
            normed = d.box(x, y + 62, norm, "weight" if new else "norm", 150, 28)
            main = d.box(x, y, part, kind, 196, height)
            d.arrow((stream, y + 94), (x, y + 94), normed.bottom)
            d.arrow(normed.top, main.bottom)
            d.arrow(main.top, (x, y - 46), (stream + 10, y - 46))
            d.plus(stream, y - 46)
        assert base.x == x
    return d


def shared_heads() -> Diagram:
    """Chapter 15: six heads of queries read six heads of keys and values, two, or one."""
    d = Diagram(474, 176)
    for x, name, count in ((84, "multi-head", 6), (238, "grouped-query", 2), (392, "multi-query", 1)):
        d.text(x, 18, name, "bold")
        width = 130 / 6
        for head in range(6):
            across = x + width * (head - 2.5)
            d.box(across, 52, "", "query", width - 4, 24, radius=0)
            shared = x + 130 / count * (head * count // 6 - (count - 1) / 2)
            d.arrow((across, 64), (shared, 100), tip=False)
        for kept in range(count):
            across = x + 130 / count * (kept - (count - 1) / 2)
            for y, kind in ((112, "key"), (136, "value")):
                d.box(across, y, "", kind, width - 4, 22, radius=0)
        d.text(x, 164, f"{2 * count} d_{{k}} per token")
    return d


def routed_network() -> Diagram:
    """Chapter 15: a router gives each token to two networks of eight."""
    d = Diagram(474, 200)
    x = d.box(36, 110, "x", "plain", 44, 30)
    router = d.box(126, 110, "router\nx W_{r}", "weight", 76, 46)
    d.arrow(x.right, router.left)
    total = d.plus(410, 110)
    for expert in range(8):
        y = 20 + 23 * expert
        chosen = expert in (1, 5)
        kind = "value" if chosen else "norm"
        box = d.box(282, y, f"FFN_{{{expert + 1}}}", kind, 110, 20)
        if chosen:
            gate = "g = 0.7" if expert == 1 else "g = 0.3"
            d.arrow(router.right, (190, 110), (190, y), box.left, kind="value")
            d.arrow(box.right, (374, y), (374, 110), total.left, kind="value")
            d.text(382, 70 if expert == 1 else 134, gate, "start")
    d.arrow(total.right, (466, 110))
    return d


def speculation() -> Diagram:
    """Chapter 15: the small model guesses four tokens, and the large one checks them in a single pass."""
    d = Diagram(474, 236)
    rows = ((44, "small model", ["o", "gato", "dorme", "na"], "query"),
            (118, "large model", ["o", "gato", "dorme", "no", ""], "attention"),
            (202, "kept", ["o", "gato", "dorme", "no"], "value"))  # fmt: skip
    for y, name, words, kind in rows:
        d.text(8, y, name, "start")
        for place, word in enumerate(words):
            wrong = (name, place) == ("small model", 3)
            d.box(152 + 72 * place, y, word, "logits" if wrong else kind, 62, 30)
    for place in range(4):
        x = 152 + 72 * place
        d.arrow((x, 60), (x, 102))
        d.arrow((x, 134), (x, 186), kind="logits" if place == 3 else "value")
        if place < 3:
            d.arrow((x + 31, 44), (x + 41, 44))
    d.text(260, 18, "four passes, one after the other")
    d.text(8, 138, "in one pass", "start")
    return d


def tools_inside() -> Diagram:
    """Chapter 14: the four places where a hook reads or changes a layer of a trained model."""
    d = Diagram(470, 306)
    left = 150
    before = d.box(left, 276, "state before", "plain", 138, 28)
    after = d.box(left, 30, "state after", "plain", 138, 28)
    attention = d.box(left, 214, "softmax(QKᵀ/√d_{k})", "attention", 150, 30)
    heads = [
        d.box(left - 51 + 34 * h, 152, "0" if h == 2 else "h", "norm" if h == 2 else "value", 28, 26)
        for h in range(4)
    ]
    mixed = d.box(left, 94, "W^{O}, and the sum", "weight", 138, 28)
    d.arrow(before.top, attention.bottom)
    for head in heads:
        d.arrow((head.x, attention.top[1]), head.bottom, kind="attention")
        d.arrow(head.top, (head.x, mixed.bottom[1]), kind="value")
    d.arrow(mixed.top, after.bottom)
    d.arrow(before.left, (38, 276), (38, 94), mixed.left)
    rows = (
        (30, after, "reads: lengths, logit lens,\na probe"),
        (152, heads[3], "changes: a head gives 0,\nor its mean"),
        (214, attention, "reads: where a head looks"),
        (276, before, "changes: a vector of\nanother sentence"),
    )
    for y, box, said in rows:
        d.arrow((268, y), (box.right[0] + 2, y), kind="query", dashed=True)
        for line, words in enumerate(said.split("\n")):
            d.text(276, y + 17 * (line - (said.count("\n")) / 2), words, "start")
    return d


def two_calls() -> Diagram:
    """Chapter 16: what two calls of a model may tell about it, without knowing a right answer."""
    d = Diagram(470, 334)
    panels = (  # two targets, the places where they differ, and how the logits elsewhere are related
        (20, "must not matter: a later token", ("the cat sleeps .", "the cat sleeps ?"), (3,), "="),
        (186, "must matter: the order", ("the cat bites it", "cat the bites it"), (0, 1), "≠"),
    )
    for top, name, targets, changed, related in panels:
        d.text(8, top, name, "bold start")
        for y, target in zip((top + 26, top + 98), targets, strict=True):
            for t, word in enumerate(target.split()):
                d.box(54 + 62 * t, y, word, "logits" if t in changed else "plain", 56, 26)
                moved = related == "≠" and target == targets[1]
                kind = "norm" if t in changed else "logits" if moved else "value"
                d.box(378 + 21 * t, y, "", kind, 18, 26, radius=0)
            model = d.box(310, y, "model", "weight", 62, 28)
            d.arrow((268, y), model.left)
            d.arrow(model.right, (366, y))
        d.text(399 if related == "=" else 430, top + 62, related, "bold")
    d.text(409, 326, "logits", "code")
    return d


def merge_tree() -> Diagram:
    """Chapter 12: the letters of a word, and the merges that make two pieces of them."""
    d = Diagram(470, 268)
    rows = (214, 154, 94, 34)
    letters = [d.box(44 + 54 * i, rows[0], sign, "plain", 34, 30) for i, sign in enumerate("▁comemos")]

    def merge(row: int, text: str, when: int, *parts: Box) -> Box:
        x = (parts[0].x + parts[1].x) / 2
        kind = "value" if text in ("▁come", "mos") else "memory"
        box = Box(x, rows[row], 26 + 9 * len(text), 30)
        for part in parts:
            d.arrow(part.top, box.bottom, tip=False)
        d.box(box.x, box.y, text, kind, box.width, box.height)
        d.text(box.right[0] + 8, box.y - 8, str(when), "code start")
        return box

    co = merge(1, "co", 1, letters[1], letters[2])
    me = merge(1, "me", 2, letters[3], letters[4])
    mo = merge(1, "mo", 9, letters[5], letters[6])
    merge(3, "▁come", 4, merge(2, "▁co", 3, letters[0], co), me)
    merge(2, "mos", 10, mo, letters[7])
    d.text(235, 250, "▁ stands for the space in front of the word")
    return d


def corpus_flow() -> Diagram:
    """Under the hood: from an archive, a file or a keyboard to tensors of ids."""
    d = Diagram(470, 520)
    server = d.box(96, 28, "a server", "plain", 130, 30)
    archive = d.box(96, 104, "archive", "memory", 130, 30)
    own = d.box(374, 28, "your own files", "memory", 150, 30)
    pairs = d.box(235, 180, "list[Pair]", "plain", 150, 30)
    form = d.box(235, 246, "Preparation", "plain", 150, 30)
    words = d.box(235, 320, "Vocabulary", "weight", 150, 30)
    file = d.box(68, 320, "its file", "memory", 96, 30)
    once = d.box(130, 396, "encode_pairs", "weight", 140, 30)
    anew = d.box(340, 396, "BPEDropout", "weight", 140, 30)
    batches = d.box(235, 466, "TokenBatches", "weight", 150, 30)
    d.arrow(server.bottom, archive.top, label="size, SHA-256")
    d.arrow(archive.bottom, (96, 180), pairs.left, label="load_corpus", at=(96, 150))
    d.arrow(own.bottom, (374, 180), pairs.right, label="read_pairs: equal lines", at=(350, 92))
    d.arrow(pairs.bottom, form.top)
    d.arrow(form.bottom, words.top, label="lower case, tokens apart")
    d.arrow(file.right, words.left)
    d.arrow(words.bottom, (235, 352), (130, 352), once.top, label="once", at=(130, 367))
    d.arrow(words.bottom, (235, 352), (340, 352), anew.top, label="in each epoch", at=(340, 367))
    d.arrow(once.bottom, (130, 432), (222, 432), (222, 451))
    d.arrow(anew.bottom, (340, 432), (248, 432), (248, 451))
    d.arrow(batches.bottom, (235, 500), tip=False)
    d.text(235, 508, "[B, S] and [B, T]", "code over")
    return d


def command_flow() -> Diagram:
    """Under the hood: two ways to name a recipe, a folder for the run, and what reads it afterwards."""
    d = Diagram(470, 412)
    recipe = d.frame(235, 110, 446, 74)
    for x, name in ((146, "a recipe’s name"), (324, "texts of your own")):
        given = d.box(x, 28, name, "plain", 136, 32)
        d.arrow(given.bottom, (x, recipe.top[1]))
    d.text(235, 88, "Recipe", "bold")
    for x, name in zip((58, 146, 235, 324, 412), ("data", "model", "schedule", "training", "loss")):
        d.box(x, 120, name, "weight", 80, 30)
    claim = d.box(235, 192, "the folder is locked, its recipe compared", "norm", 400, 46)
    d.arrow(recipe.bottom, claim.top)
    run = d.box(98, 278, "train_recipe", "attention", 140, 46)
    kept = "config.json  log.jsonl\ncheckpoint-*.pt  best.pt"
    folder = d.box(344, 278, kept, "memory", 220, 46, look="code")
    left = d.box(344, 338, "translator/  record.json", "value", 220, 32, look="code")
    d.arrow((98, 215), run.top)
    d.arrow((168, 270), (234, 270), label="saves", at=(201, 258), look="")
    d.arrow((234, 288), (168, 288), label="goes on", at=(201, 302), look="", dashed=True)
    d.arrow(folder.bottom, left.top)
    d.text(344, 244, "the run’s folder", "bold")
    for x, name in ((62, "translate"), (178, "evaluate"), (294, "serve"), (410, "info")):
        command = d.box(x, 392, name, "plain", 96, 30, look="code")
        d.arrow(left.bottom, (344, 366), (x, 366), command.top, kind="value")
    return d


def parts_of_a_run() -> Diagram:
    """Under the hood: what a trainer is made of, and what becomes a file."""
    d = Diagram(470, 354)
    batches = d.box(66, 40, "batches", "plain", 100)
    stream = d.box(228, 40, "BatchStream", "key", 116)
    updater = d.box(396, 40, "Updater", "attention", 110)
    evaluate = d.box(66, 128, "evaluate", "plain", 100)
    best = d.box(228, 128, "Scores", "value", 116)
    log = d.box(396, 128, "RunLog", "query", 110)
    d.box(206, 216, "Trainer\nweights, averages, place in the data, …", "memory", 372, 50)
    d.frame(235, 308, 458, 82)
    d.text(16, 334, "the folder, locked by run.lock", "start")
    best_file = d.box(66, 298, "best.pt", "weight", 96, 30, look="code")
    checkpoint = d.box(228, 298, "checkpoint-….pt", "weight", 160, 30, look="code")
    d.box(396, 298, "log.jsonl", "weight", 110, 30, look="code")
    d.arrow(batches.right, stream.left)
    d.arrow(stream.right, updater.left, label="group", at=(313, 22))
    d.arrow(updater.bottom, log.top, label="loss, tokens, norm", at=(386, 84))
    d.arrow(evaluate.right, best.left, label="metrics", at=(143, 101))
    d.arrow(best.bottom, (228, 191), kind="memory")
    d.arrow((370, 145), (370, 191), kind="memory")
    d.arrow((66, 241), best_file.top, kind="memory", label="if best", at=(66, 256))
    d.arrow((228, 241), checkpoint.top, kind="memory")
    d.arrow((430, 145), (430, 283), kind="query")
    return d


def translator_flow() -> Diagram:
    """Under the hood: how a translator is loaded, and the way of a sentence through it."""
    d = Diagram(476, 256)
    hub = d.box(46, 32, "hub", "plain", 68, 30)
    folder = d.box(160, 32, "folder", "plain", 84, 30)
    checked = d.box(310, 32, "sums, header, numbers", "norm", 178, 30)
    d.arrow(hub.right, folder.left, dashed=True)
    d.arrow(folder.right, checked.left)
    vocabulary = d.box(160, 126, "vocabulary", "weight", 96, 32)
    model = d.box(310, 126, "model", "weight", 76, 32)
    d.arrow(checked.bottom, model.top)
    d.arrow((288, 47), (288, 79), (160, 79), vocabulary.top)
    said = d.box(52, 210, "sentence", "plain", 80, 32)
    ids = d.box(160, 210, "ids", "query", 60, 32)
    search = d.box(310, 210, "search", "attention", 76, 32)
    written = d.box(426, 210, "translation", "logits", 88, 32)
    d.arrow(said.right, ids.left)
    d.arrow(ids.right, search.left, label="[B, S]")
    d.arrow(search.right, written.left)
    d.arrow(vocabulary.bottom, ids.top, kind="weight")
    d.arrow(model.bottom, search.top, kind="weight")
    for x, note in ((52, "as typed"), (160, "prepared"), (310, "by length"), (426, "restored")):
        d.text(x, 240, note)
    return d


def sharded_state() -> Diagram:
    """Chapter 17: what the second of four processes holds, from data parallelism to full sharding."""
    d = Diagram(474, 232)
    columns = (("parameters", "weight", 178), ("gradients", "query", 288), ("Adam's m, v", "memory", 398))
    rows = (("data parallel", 0), ("ZeRO 1", 1), ("ZeRO 2", 2), ("ZeRO 3", 3))
    for name, _, x in columns:
        d.text(x, 20, name)
    for row, (name, n_sharded) in enumerate(rows):
        y = 54 + 40 * row
        d.text(16, y, name, "start")
        for column, (_, kind, x) in enumerate(columns):
            sharded = column >= 3 - n_sharded
            d.grid(x, y, [["" if sharded and part != 1 else kind for part in range(4)]], 24)
    d.grid(28, 212, [[""]], 24)
    d.text(46, 212, "held by another process", "start")
    return d


def ring_sum() -> Diagram:
    """Chapter 17: a sum by ring, as a reduce-scatter and an all-gather."""
    d = Diagram(474, 196)
    sums = [["value" if (row + 1) % 4 == column else "plain" for row in range(4)] for column in range(4)]
    tables = (
        ("four arrays", [["plain"] * 4] * 4, 60),
        ("one sum each", sums, 237),
        ("all sums", [["value"] * 4] * 4, 414),
    )
    for name, kinds, x in tables:
        d.text(x, 18, name, "bold")
        d.grid(x, 90, kinds, 26)
        for process in range(4):
            d.text(x + 26 * (process - 1.5), 154, str(process))
    for x, name in ((148, "reduce-\nscatter"), (325, "all-\ngather")):
        d.arrow((x - 30, 90), (x + 30, 90))
        for line, word in enumerate(name.split("\n")):
            d.text(x, 54 + 17 * line, word)
        d.text(x, 107, "n − 1")
        d.text(x, 124, "steps")
    d.text(237, 180, "process; a square is a quarter of an array")
    return d


def tensor_parallel() -> Diagram:
    """Chapter 17: a network divided by columns, then by rows, with a sum at its end."""
    d = Diagram(474, 226)
    plus = d.plus(404, 113)
    for process, y in enumerate((62, 164)):
        d.text(16, y - 44 if process == 0 else y + 44, f"process {process}", "start bold")
        x = d.box(32, y, "x", "plain", 36, 30)
        columns = d.box(132, y, f"columns {process}\nof W_{{1}}", "weight", 92, 46)
        hidden = d.box(222, y, "ReLU", "attention", 48, 30)
        rows = d.box(314, y, f"rows {process}\nof W_{{2}}", "weight", 84, 46)
        d.arrow(x.right, columns.left)
        d.arrow(columns.right, hidden.left)
        d.arrow(hidden.right, rows.left)
        d.arrow(rows.right, (404, y), plus.top if process == 0 else plus.bottom)
        out = d.box(454, y, "y", "plain", 34, 30)
        d.arrow((414, 113), (432, 113), (432, y), out.left)
    d.text(372, 113, "all-reduce", "end")
    return d


def ring_attention() -> Diagram:
    """Chapter 17: queries stay, keys and values go around."""
    d = Diagram(470, 190)
    places = (62, 177, 292, 407)
    for process, x in enumerate(places):
        d.text(x, 18, f"process {process}")
        query = d.box(x, 52, f"Q_{{{process}}}", "query", 76, 30)
        d.box(x - 19, 118, f"K_{{{process}}}", "key", 38, 30, radius=0)
        d.box(x + 19, 118, f"V_{{{process}}}", "value", 38, 30, radius=0)
        d.arrow((x, 103), query.bottom, kind="attention")
        if process < 3:
            d.arrow((x + 38, 118), (places[process + 1] - 38, 118), wide=True)
    d.arrow((445, 118), (458, 118), (458, 164), (12, 164), (12, 118), (24, 118), wide=True)
    d.text(235, 180, "n − 1 turns, and every query has met every key")
    return d
