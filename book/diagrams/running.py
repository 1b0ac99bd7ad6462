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
    d.text(at(15), 46, "without a break", "over")
    d.arrow((at(0), 122), (at(28), 122), kind="attention")
    d.text(at(29.3), 122, "×", "bold")
    d.text(at(34.5), 122, "power cut", "over")
    for update in (0, 10, 20):
        d.box(at(update), 122, "", "weight", 20, 20)
    d.text(at(5), 104, "checkpoints", "over")
    d.arrow((at(20), 132), (at(20), 176), kind="weight")
    d.arrow((at(20), 182), (at(40), 182), kind="attention")
    d.text(at(30), 166, "the same updates again", "over")
    d.text(at(16), 160, "resume", "end over")
    d.arrow((at(40) + 6, 62), (456, 62), (456, 182), (at(40) + 6, 182), kind="value", tip=False)
    d.text(448, 122, "=", "bold over")
    d.box(30, 232, "", "weight", 20, 16)
    d.text(46, 232, "weights, averages, place in the data, random numbers", "start")
    return d


def data_parallel() -> Diagram:
    """Chapter 11: two processes make one update."""
    d = Diagram(470, 412)
    for x, name, tokens in ((112, "process 0", "n_{0}"), (358, "process 1", "n_{1}")):
        d.frame(x, 200, 212, 384)
        d.text(x, 24, name, "bold")
        data = d.box(x, 62, "its own batches", "plain", 150, 30)
        model = d.box(x, 118, "weights θ", "weight", 150, 30)
        loss = d.box(x, 174, f"L, and {tokens} tokens", "logits", 150, 30)
        gradient = d.box(x, 264, "W ∇L / N", "query", 150, 30)
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


def parts_of_a_run() -> Diagram:
    """Workshop D: what a trainer is made of, and what becomes a file."""
    d = Diagram(470, 354)
    batches = d.box(66, 40, "batches", "plain", 100)
    stream = d.box(228, 40, "BatchStream", "key", 116)
    updater = d.box(396, 40, "Updater", "attention", 110)
    evaluate = d.box(66, 128, "evaluate", "plain", 100)
    best = d.box(228, 128, "Best", "value", 116)
    journal = d.box(396, 128, "Journal", "query", 110)
    d.box(206, 216, "Trainer.state_dict()\nweights, averages, place in the data, …", "memory", 372, 50)
    d.frame(235, 308, 458, 82)
    d.text(16, 334, "the folder, locked by run.lock", "start")
    best_file = d.box(66, 298, "best.pt", "weight", 96, 30, look="code")
    checkpoint = d.box(228, 298, "checkpoint-….pt", "weight", 160, 30, look="code")
    d.box(396, 298, "log.jsonl", "weight", 110, 30, look="code")
    d.arrow(batches.right, stream.left)
    d.arrow(stream.right, updater.left, label="group", at=(313, 22))
    d.arrow(updater.bottom, journal.top, label="loss, tokens, norm", at=(386, 84))
    d.arrow(evaluate.right, best.left, label="metrics", at=(143, 110))
    d.arrow(best.bottom, (228, 191), kind="memory")
    d.arrow((370, 145), (370, 191), kind="memory")
    d.arrow((66, 241), best_file.top, kind="memory", label="if best", at=(66, 256))
    d.arrow((228, 241), checkpoint.top, kind="memory")
    d.arrow((430, 145), (430, 283), kind="query")
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
