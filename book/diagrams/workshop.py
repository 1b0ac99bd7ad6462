"""More diagrams of the workshop, between those that open its notebooks."""

from __future__ import annotations

from pencil import Box, Diagram


def joined_pronouns() -> Diagram:
    """Workshop A: the end of a verb decides the form of the pronoun that is joined to it."""
    d = Diagram(470, 262)
    columns = (
        (82, "a vowel", "stays", (("vejo + o", "vejo-o"),), "value"),
        (235, "r, s or z", "falls, l comes", (("comer + o", "comê-lo"), ("faz + o", "fá-lo")), "query"),
        (388, "a nasal sound", "n comes", (("comem + o", "comem-no"),), "memory"),
    )
    verb = d.box(235, 26, "the verb ends in …", "plain", 150, 30)
    for x, ending, rule, cases, kind in columns:
        box = d.box(x, 88, f"{ending}\n{rule}", kind, 132, 44)
        bend = () if x == verb.x else ((235, 52), (x, 52))
        d.arrow(verb.bottom, *bend, box.top)
        d.arrow(box.bottom, (x, 123), kind=kind)
        for i, (parts, whole) in enumerate(cases):
            d.box(x, 144 + 52 * i, f"{parts}\n{whole}", "norm", 112, 42)
    d.text(235, 244, "two exceptions:  tens + o = tem-lo,  quer + o = quere-o")
    return d


def one_noun_tells_all() -> Diagram:
    """Workshop A: what a noun phrase tells the words around it, in both languages."""
    d = Diagram(470, 290)
    noun = d.box(235, 140, "gata, cat\nfeminine, plural", "weight", 150, 46)
    upper = (("as", 74), ("gatas", 164), ("pretas", 262), ("dormem", 384))
    lower = (("the", 74), ("black", 164), ("cats", 262), ("sleep", 384))
    kinds = ("query", "weight", "query", "value")
    for (word, x), kind in zip(upper, kinds, strict=True):
        box = d.box(x, 46, word, kind, 82, 30)
        d.arrow((noun.x + (x - noun.x) * 0.28, 117), box.bottom, kind=kind)
    for (word, x), kind in zip(lower, ("norm", "norm", "weight", "value"), strict=True):
        box = d.box(x, 232, word, kind, 82, 30)
        if kind != "norm":
            d.arrow((noun.x + (x - noun.x) * 0.28, 163), box.top, kind=kind)
    d.text(74, 20, "agrees", "over")
    d.text(262, 20, "agrees", "over")
    d.text(384, 20, "fifth column of its table")
    d.text(384, 258, "as after they")
    d.text(119, 258, "always the same")
    d.text(262, 258, "an s")
    return d


def orders_of_a_clause() -> Diagram:
    """Workshop A: Portuguese keeps its order where English turns it around or lets do in."""
    d = Diagram(470, 300)
    rows = (
        (30, "ela come pão .", "she eats bread .", ((0, 0), (1, 1), (2, 2))),
        (128, "ela come pão ?", "does she eat bread ?", ((0, 1), (1, 2), (2, 3))),
        (226, "ela não come pão .", "she does n't eat bread .", ((0, 0), (1, 2), (2, 3), (3, 4))),
    )
    for top, portuguese, english, links in rows:
        above = [
            d.box(56 + 78 * i, top, word, "query", 70 if len(word) > 1 else 26, 28)
            for i, word in enumerate(portuguese.split())
        ]
        below = [
            d.box(56 + 78 * i, top + 48, word, "logits" if word == "does" else "key",
                  70 if len(word) > 1 else 26, 28)
            for i, word in enumerate(english.split())
        ]  # fmt: skip
        for one, other in (*links, (len(above) - 1, len(below) - 1)):
            d.arrow(above[one].bottom, below[other].top, tip=False)
    return d


def pronoun_and_its_noun() -> Diagram:
    """Workshop A: a pronoun of one letter is translated by a noun eight tokens before it."""
    d = Diagram(474, 190)
    source = "o livro é novo , mas a ana não o lê .".split()
    target = "the book is new , but ana does n't read it .".split()
    widths = [15 + 7.6 * len(word) for word in source], [15 + 7.6 * len(word) for word in target]
    places: list[list[Box]] = []
    for y, words, sizes in ((82, source, widths[0]), (152, target, widths[1])):
        gap = (466 - sum(sizes)) / (len(words) - 1)
        left, boxes = 4.0, []
        for word, size in zip(words, sizes, strict=True):
            kind = {"livro": "weight", "book": "weight", "it": "value"}.get(word, "norm")
            kind = "value" if (word, len(boxes)) == ("o", 9) else kind
            boxes.append(d.box(left + size / 2, y, word, kind, size, 28))
            left += size + gap
        places.append(boxes)
    noun, pronoun = places[0][1], places[0][9]
    d.arrow(pronoun.top, (pronoun.x, 34), (noun.x, 34), noun.top, kind="value")
    d.text((noun.x + pronoun.x) / 2, 18, "a book, so it; after o rapaz it would be him")
    d.arrow(pronoun.bottom, places[1][10].top, kind="value")
    d.arrow(noun.bottom, places[1][1].top, kind="weight", tip=False)
    return d


def mixture_of_kinds() -> Diagram:
    """Workshop A: how often each of the sixteen kinds of sentence is drawn."""
    d = Diagram(474, 292)
    rows = (
        (10, "somebody does something", "query"),
        (4, "and does it to it, or him", "value"),
        (3, "is so, or is so now", "memory"),
        (2, "does it alone", "plain"),
        (2, "gives", "plain"),
        (2, "travels", "plain"),
        (2, "is hungry, is ten", "plain"),
        (2, "points at something", "plain"),
        (8, "eight more kinds, one each", "norm"),
    )
    total = sum(share for share, _, _ in rows)
    for row, (share, name, kind) in enumerate(rows):
        y = 18 + 30 * row
        d.text(200, y, name, "end")
        d.box(208 + 10 * share, y, "", kind, 20 * share, 20, radius=0)
        d.text(216 + 20 * share, y, f"{share} of {total}", "start")
    return d


def ends_of_a_command() -> Diagram:
    """Workshop B: the ways in which the program ends, and the status that a shell sees."""
    d = Diagram(470, 258)
    run = d.box(64, 126, "main", "attention", 88, 40, look="code")
    rows = (
        ("done", "", "0", "value"),
        ("a check failed", "its report", "1", "logits"),
        ("a mistake", "one line, no traceback", "2", "logits"),
        ("head has read enough", "nothing", "141", "norm"),
        ("Ctrl-C, SIGTERM", "a checkpoint, one sentence", "130, 143", "memory"),
    )
    for row, (what, said, status, kind) in enumerate(rows):
        y = 28 + 49 * row
        box = d.box(268, y, f"{what}\n{said}" if said else what, kind, 206, 42)
        d.arrow(run.right, (136, 126), (136, y), box.left)
        d.text(384, y, status, "code start")
    d.text(384, 252, "status", "start")
    return d


def slices_of_a_run() -> Diagram:
    """Workshop B: one command, given again and again; its folder goes on, and refuses another recipe."""
    d = Diagram(470, 272)
    d.text(8, 24, "train phrases --max-minutes 30", "code start")
    for i, x in enumerate((74, 200, 326)):
        d.box(x, 62, f"30 minutes,\n{('begins', 'goes on', 'goes on')[i]}", "attention", 112, 44)
        d.arrow((x, 84), (x, 112), kind="memory")
        if i:
            d.arrow((x - 63, 112), (x - 63, 62), (x - 56, 62), kind="memory", dashed=True)
    d.box(236, 136, "the run's folder\nconfig.json, checkpoints, translator/", "memory", 456, 48)
    for x, command, answer, kind in (
        (88, "the same,\nmore steps", ("goes on",), "value"),
        (234, "another width", ("refused, and", "nothing changed"), "logits"),
        (382, "at the same time", ("refused, locked",), "logits"),
    ):
        asked = d.box(x, 250, command, "plain", 132, 40)
        d.arrow(asked.top, (x, 161), kind=kind)
        for line, words in enumerate(answer):
            d.text(x, 197 + 17 * (line - (len(answer) - 1) / 2), words, "over")
    return d


def graded_apart() -> Diagram:
    """Workshop B: notebooks of students run in a process of their own, which may hang or end."""
    d = Diagram(470, 226)
    grade = d.box(66, 112, "grade", "attention", 96, 36, look="code")
    rows = (
        (44, "process 1", ("✓", "✓", "hangs", ""), "killed at its limit"),
        (148, "process 2", ("", "", "", "✗"), "goes on with the next"),
    )
    for y, name, pieces, said in rows:
        frame = d.frame(308, y, 308, 64)
        d.text(168, y - 18, name, "start over")
        for i, verdict in enumerate(pieces):
            kind = {"✓": "value", "✗": "logits", "hangs": "memory"}.get(verdict, "norm")
            d.box(196 + 74 * i, y + 8, f"{i + 1}  {verdict}" if verdict else f"{i + 1}", kind, 66, 28)
        d.text(458, y - 18, said, "end over")
        d.arrow(grade.right, (132, 112), (132, y), frame.left)
    d.text(308, 208, "✓  ✓  did not end in time  ✗", "bold")
    d.text(150, 208, "the table:", "end")
    return d


def four_in_a_draw() -> Diagram:
    """Workshop C: 64 random bits decide about four entries, each against a threshold of 16 bits."""
    d = Diagram(474, 218)
    d.text(8, 20, "64 random bits, drawn once", "start")
    values = (41_087, 3_212, 60_990, 9_431)
    for i, value in enumerate(values):
        x = 64 + 115 * i
        kept = value >= 6_554
        number = d.box(x, 50, f"{value:,}", "query", 111, 30, radius=0)
        asked = d.box(x, 112, "≥ 6,554 ?", "norm", 92, 30)
        answer = d.box(x, 178, f"1.111 x_{{{i + 1}}}" if kept else "0", "value" if kept else "logits", 92, 30)
        d.arrow(number.bottom, asked.top)
        d.arrow(asked.bottom, answer.top, label="yes" if kept else "no", look="over")
    d.text(237, 208, "6,554 of 65,536 drop an entry: a rate of 0.100006")
    return d


def joined_products() -> Diagram:
    """Workshop C: three weight matrices side by side, and one product that reads the input once."""
    d = Diagram(474, 240)
    d.text(8, 20, "plain", "bold start")
    for i, (name, kind) in enumerate((("Q", "query"), ("K", "key"), ("V", "value"))):
        y = 50 + 26 * i
        d.box(40, y, "X", "plain", 56, 22, radius=0)
        d.box(140, y, f"W^{{{name}}}", kind, 56, 22, radius=0)
        d.box(240, y, name, kind, 56, 22, radius=0)
        d.text(90, y, "·", "bold")
        d.text(190, y, "=", "bold")
    d.text(290, 76, "X is read three times", "start")
    d.text(8, 150, "joined", "bold start")
    d.box(40, 184, "X", "plain", 56, 44, radius=0)
    d.text(82, 184, "·", "bold")
    for i, (name, kind) in enumerate((("Q", "query"), ("K", "key"), ("V", "value"))):
        d.box(120 + 56 * i, 184, f"W^{{{name}}}", kind, 54, 44, radius=0)
        d.box(318 + 56 * i, 184, name, kind, 54, 44, radius=0)
    d.text(275, 184, "=", "bold")
    d.text(237, 226, "copied for each call of at least 128 rows, then cut apart")
    return d


def shared_dictionaries() -> Diagram:
    """Workshop C: the fast model has other classes and the same dictionaries of parameters."""
    d = Diagram(470, 240)
    for x, name, classes in (
        (96, "Transformer", ("Linear", "Dropout", "MultiHeadAttention")),
        (374, "FastTransformer", ("FastLinear", "FastDropout", "FastMultiHead…")),
    ):
        d.text(x, 20, name, "bold")
        for i, one in enumerate(classes):
            kind = "plain" if x < 200 else "attention"
            part = d.box(x, 56 + 58 * i, one, kind, 164, 32, look="code")
            if one.endswith("Dropout"):
                continue
            end = (204, part.y) if x < 200 else (266, part.y)
            d.arrow(part.right if x < 200 else part.left, end, kind="weight")
    for y in (56, 172):
        d.box(235, y, "θ", "weight", 58, 32)
    d.text(235, 114, "no numbers")
    d.text(235, 216, "what is moved, cast or replaced in one")
    d.text(235, 233, "is so in the other")
    return d


def int8_product() -> Diagram:
    """Workshop C: a row of an input and a row of a weight matrix as whole numbers, each with its scale."""
    d = Diagram(474, 206)
    rows = (
        (40, "input", ("0.50", "−1.26", "0.02"), ("25", "−63", "1"), "0.02", "query"),
        (112, "weights", ("0.127", "0.040", "−0.060"), ("127", "40", "−60"), "0.001", "weight"),
    )
    for y, name, floats, whole, scale, kind in rows:
        d.text(8, y - 28, name, "bold start")
        for i, (one, other) in enumerate(zip(floats, whole, strict=True)):
            d.box(36 + 58 * i, y, one, "norm", 54, 28, radius=0)
            d.box(286 + 52 * i, y, other, kind, 48, 28, radius=0)
        d.arrow((184, y), (254, y), kind=kind)
        d.text(219, y - 16, f"÷ {scale}")
    d.text(8, 172, "25 · 127 − 63 · 40 − 1 · 60 = 595", "code start")
    d.text(8, 194, "595 · 0.02 · 0.001 = 0.0119", "code start")
    d.text(290, 194, "the floats give 0.0119", "start")
    return d


def course_of_a_word() -> Diagram:
    """Workshop E: one number says where the first merge of a word is left out."""
    d = Diagram(470, 222)
    d.text(8, 22, "a word of four merges", "bold start")
    draws = ("G = 7", "G > 4: cut as always", 5), ("G = 3", "two merges made, the third left out", 3)
    for row, (place, told, stops) in enumerate(draws):
        y = 66 + 88 * row
        d.box(40, y, place, "query", 68, 30)
        before: Box | None = None
        for merge in range(1, 5):
            left_out, after = merge == stops, merge > stops
            kind = "logits" if left_out else "norm" if after else "value"
            box = d.box(122 + 88 * (merge - 1), y, f"merge {merge}", kind, 74, 30)
            if before is not None and not after:
                d.arrow(before.right, box.left, dashed=left_out)
            before = box
        d.text(122 - 37, y + 30, told, "start")
    d.text(296, 206, "here a new course begins, with a new G", "over")
    d.arrow((298, 196), (298, 170), kind="logits")
    return d


def way_of_an_archive() -> Diagram:
    """Workshop E: how a corpus is found on this machine or fetched, and gets its name."""
    d = Diagram(470, 300)
    here = d.box(86, 34, "a file of that name?", "norm", 152, 32)
    right = d.box(86, 112, "size, SHA-256", "norm", 130, 32)
    use = d.box(86, 262, "the two texts,\nread from the stream", "value", 156, 46)
    source = d.box(318, 34, "the next source", "plain", 136, 32)
    part = d.box(318, 112, "a file without its name,\nat most its size", "memory", 184, 46)
    sums = d.box(318, 188, "size, SHA-256", "norm", 130, 32)
    d.arrow(here.bottom, right.top, label="yes", look="over")
    d.arrow(right.bottom, use.top, label="right", look="over", at=(86, 150))
    d.arrow(here.right, source.left, label="no", look="over", at=(183, 34))
    d.arrow(right.right, (206, 112), (206, 34), source.left, dashed=True)
    d.text(178, 74, "wrong")
    d.arrow(source.bottom, part.top)
    d.arrow(part.bottom, sums.top)
    d.arrow(sums.left, (86, 188), label="right: now it has its name", look="over", at=(186, 172))
    d.arrow(sums.right, (462, 188), (462, 42), (386, 42), dashed=True)
    d.text(406, 174, "wrong")
    d.box(360, 262, "no source left: which file\nto put where", "logits", 190, 46)
    d.arrow((386, 26), (432, 26), (432, 239), kind="logits", dashed=True)
    d.text(426, 12, "none left")
    return d


def one_line_too_many() -> Diagram:
    """Workshop E: one more line feed in a file, and every later pair is wrong."""
    d = Diagram(470, 214)
    left = ("bom dia .", "até já .", "", "gosto disto .", "não sei .")
    right = ("good morning .", "see you soon .", "i like this .", "i don't know .")
    d.text(100, 18, "train.pt", "code")
    d.text(360, 18, "train.en", "code")
    for i, text in enumerate(left):
        y = 48 + 36 * i
        d.text(14, y, str(i + 1))
        one = d.box(104, y, text, "logits" if not text else "query", 150, 28)
        if i < len(right):
            wrong = i > 1
            other = d.box(360, y, right[i], "key", 150, 28)
            says = {"label": "wrong" if wrong else "right", "look": "over"}
            d.arrow(
                one.right, other.left, kind="logits" if wrong else "value", tip=False, dashed=wrong, **says
            )
        else:
            d.text(200, y, "alone, so the files are refused", "start")
    return d


def gates_of_a_folder() -> Diagram:
    """Workshop F: what is looked at before a number of a stranger's folder is read."""
    d = Diagram(474, 274)
    rows = (
        (34, "SHA256SUMS", "each file as it was saved", "memory"),
        (94, "config.json", "sizes that a model may have", "memory"),
        (154, "header of the weights", "names and shapes of a plan without memory", "memory"),
        (230, "numbers, pieces", "finite, and they belong together", "weight"),
    )
    above = None
    for y, name, asked, kind in rows:
        box = d.box(96, y, name, kind, 166, 34, look="code" if "." in name or name.isupper() else "")
        d.text(196, y - 9, asked, "start")
        d.arrow((196, y + 9), (424, y + 9), kind="logits", dashed=True)
        d.text(430, y + 9, "no", "start")
        if above is not None:
            d.arrow(above.bottom, box.top)
        above = box
    d.arrow((8, 190), (466, 190), tip=False, dashed=True)
    d.text(196, 202, "memory for a model only below this line", "start over")
    return d


def to_a_hub_and_back() -> Diagram:
    """Workshop F: what goes to a hub, what is fetched from it, and what is asked first."""
    d = Diagram(474, 250)
    mine = d.box(84, 60, "Translator\nand its record", "attention", 136, 48)
    hub = d.box(392, 124, "OWNER/NAME\non the hub", "memory", 130, 52)
    d.arrow(mine.right, (392, 60), hub.top, label="push_to_hub", at=(256, 44))
    d.text(256, 78, "four files, README.md", "over")
    kept = d.box(238, 194, "kept on this\nmachine", "plain", 112, 46)
    d.arrow(hub.bottom, (392, 194), kept.right)
    d.text(404, 220, "JSON, safetensors,")
    d.text(404, 237, "pieces: no code")
    other = d.box(78, 194, "Translator", "attention", 112, 34)
    d.arrow(kept.left, other.right)
    d.text(78, 226, "from_pretrained", "code")
    first = d.box(78, 130, "a folder here?", "norm", 120, 30)
    d.arrow(first.bottom, other.top, label="first", look="over")
    return d


def form_of_a_layer() -> Diagram:
    """Workshop G: what a layer was built with, read off its parts."""
    d = Diagram(474, 266)
    d.text(96, 18, "a layer of torch.nn", "bold")
    d.text(388, 18, "its form", "bold")
    d.frame(96, 134, 184, 208)
    rows = (
        ("self_attn", "d_model, n_heads", "attention"),
        ("linear1", "d_ff, bias", "weight"),
        ("activation", "relu, gelu, silu", "value"),
        ("norm_first", "norm_first", "norm"),
    )
    for i, (part, said, kind) in enumerate(rows):
        y = 60 + 50 * i
        box = d.box(96, y, part, kind, 140, 34, look="code")
        form = d.box(388, y, said, kind, 160, 34, look="code")
        d.arrow(box.right, form.left)
    d.text(237, 254, "all layers of a stack must agree")
    return d


def order_of_features() -> Diagram:
    """Workshop G: sines and cosines in turn, and Marian's two blocks: the same features in another order."""
    d = Diagram(470, 184)
    size, left = 50, 112
    d.text(8, 44, "ours", "start")
    d.text(8, 140, "Marian's", "start")
    ours = [("sin", i // 2) if i % 2 == 0 else ("cos", i // 2) for i in range(6)]
    theirs = [("sin", i) for i in range(3)] + [("cos", i) for i in range(3)]
    above, below = {}, {}
    for y, features, found in ((44, ours, above), (140, theirs, below)):
        for place, (name, speed) in enumerate(features):
            kind = "query" if name == "sin" else "value"
            found[name, speed] = d.box(left + 60 * place, y, f"{name}_{{{speed}}}", kind, size, 32, radius=0)
    for feature, box in above.items():
        d.arrow(box.bottom, below[feature].top, kind="query" if feature[0] == "sin" else "value", tip=False)
    return d


def first_token_given() -> Diagram:
    """Workshop G: the first token says which language the model writes, and is not the model's choice."""
    d = Diagram(474, 246)
    d.text(8, 18, "Beginning, around a model", "bold start")
    steps = (
        (92, "step 1", "⟨start⟩", "one token\nallowed", "fra_Latn", "logits"),
        (238, "step 2", "fra_Latn", "as the model\nsays", "merci", "value"),
        (384, "step 3", "merci", "as the model\nsays", "⟨end⟩", "value"),
    )
    for x, name, read, rule, written, kind in steps:
        d.text(x, 46, name)
        given = d.box(x, 74, read, "plain", 84, 28)
        model = d.box(x, 136, rule, "norm" if kind == "logits" else "attention", 104, 46)
        out = d.box(x, 204, written, kind, 84, 28)
        d.arrow(given.bottom, model.top)
        d.arrow(model.bottom, out.top)
        if x < 384:
            d.arrow(out.right, (x + 73, 204), (x + 73, 74), (x + 104, 74), dashed=True)
    d.text(92, 234, "probability 1")
    return d


def stacked_for_the_engine() -> Diagram:
    """Workshop G: our matrices, and the places of CTranslate2's specification that they are stacked into."""
    d = Diagram(474, 330)
    d.text(86, 18, "ours", "bold")
    d.text(368, 18, "CTranslate2", "bold")
    rows = (
        ("self_attention", (("w_q", "query"), ("w_k", "key"), ("w_v", "value")), "linear[0]"),
        ("", (("w_o", "weight"),), "linear[1]"),
        ("cross_attention", (("w_q", "query"),), "linear[0]"),
        ("", (("w_k", "key"), ("w_v", "value")), "linear[1]"),
        ("", (("w_o", "weight"),), "linear[2]"),
    )
    y = 58.0
    for name, parts, place in rows:
        if name:
            d.text(8, y - 18, name, "code start")
        middle = y + 12 * (len(parts) - 1) + 6
        for i, (part, kind) in enumerate(parts):
            top = y + 6 + 28 * i
            d.box(92, top, part, kind, 72, 24, radius=0, look="code")
            stacked = middle + 24 * (i - (len(parts) - 1) / 2)
            d.box(316, stacked, "", kind, 84, 24, radius=0)
            d.arrow((128, top), (168, top), (234, stacked), (274, stacked), kind=kind)
        d.text(366, middle, place, "code start")
        y += 28 * len(parts) + (6 if place in ("linear[0]",) and len(parts) > 1 else 8)
        y += 26 if place == "linear[1]" and len(parts) == 1 else 0
    return d


def two_graphs() -> Diagram:
    """Workshop G: two graphs without loops, and the loop between them that hands the cache on."""
    d = Diagram(474, 290)
    src = d.box(56, 40, "src", "plain", 72, 30, look="code")
    encoder = d.box(190, 40, "encoder.onnx", "weight", 120, 36, look="code")
    d.arrow(src.right, encoder.left)
    kept = d.box(390, 40, "mask, cross", "memory", 116, 36, look="code")
    d.arrow(encoder.right, kept.left)
    d.frame(237, 186, 458, 196)
    d.text(20, 104, "the loop, in any language, once a token", "bold start")
    last = d.box(64, 164, "last", "plain", 84, 30, look="code")
    own = d.box(64, 236, "own", "memory", 84, 30, look="code")
    decoder = d.box(224, 200, "decoder.onnx", "weight", 120, 44, look="code")
    d.arrow(last.right, (136, 164), (136, 192), (164, 192))
    d.arrow(own.right, (136, 236), (136, 208), (164, 208))
    d.arrow((350, 58), (350, 146), (224, 146), decoder.top, kind="memory")
    logits = d.box(390, 182, "argmax of logits", "logits", 126, 30)
    grown = d.box(390, 232, "grown", "memory", 126, 30, look="code")
    d.arrow((284, 192), (310, 192), (310, 182), logits.left)
    d.arrow((284, 208), (310, 208), (310, 232), grown.left)
    d.arrow(grown.bottom, (390, 270), (64, 270), own.bottom, kind="memory", dashed=True)
    d.arrow((420, 167), (420, 126), (64, 126), last.top, kind="logits", dashed=True)
    return d


def three_futures() -> Diagram:
    """Workshop H: what stands after a position is replaced, padded and cut off; the logits before it stay."""
    d = Diagram(474, 236)
    rows = (
        ("as it is", ("the", "cat", "sleeps", "here"), "plain"),
        ("replaced", ("the", "cat", "bites", "us"), "logits"),
        ("padded", ("the", "cat", "⟨pad⟩", "⟨pad⟩"), "norm"),
        ("cut off", ("the", "cat"), ""),
    )
    for i, (name, words, kind) in enumerate(rows):
        y = 48 + 46 * i
        d.text(8, y, name, "start")
        for t, word in enumerate(words):
            d.box(104 + 60 * t, y, word, "plain" if t < 2 else kind, 56, 28)
            d.box(346 + 34 * t, y, "", "value" if t < 2 else "norm", 30, 28, radius=0)
        d.arrow((314, y), (327, y))
    d.text(194, 18, "target")
    d.text(397, 18, "logits")
    for i in range(3):
        d.text(363, 71 + 46 * i, "=", "bold")
    d.text(237, 224, "for every t; here t = 2")
    return d


def search_in_one_pass() -> Diagram:
    """Workshop H: what a search has written is read back in one pass, and each token must be the best."""
    d = Diagram(474, 240)
    search = d.box(64, 40, "search", "attention", 92, 34)
    d.text(64, 72, "with its cache")
    words = ("this", "is", "a", "⟨end⟩")
    reads = ("⟨start⟩", "this", "is", "a")
    for t, (word, read) in enumerate(zip(words, reads, strict=True)):
        x = 176 + 82 * t
        written = d.box(x, 40, word, "value", 70, 30)
        best = d.box(x, 112, "best?", "logits", 70, 30)
        model = (x, 165)
        given = d.box(x, 222, read, "plain", 70, 28)
        d.arrow(given.top, (x, 190))
        d.arrow(model, best.bottom)
        d.arrow(best.top, written.bottom, tip=False, kind="value")
    d.arrow(search.right, (141, 40))
    d.box(299, 177, "the model, one pass without a cache", "weight", 330, 26)
    return d


def two_paths_of_nanogpt() -> Diagram:
    """Workshop H: the adapter takes the last position from one path and the others from the other."""
    d = Diagram(474, 222)
    idx = d.box(52, 110, "tgt", "plain", 72, 32, look="code")
    calls = (
        (52, "model(idx, targets)", ("value",) * 3 + ("norm",), "all positions"),
        (168, "model(idx)", ("",) * 3 + ("query",), "the last one"),
    )
    for y, call, kinds, said in calls:
        box = d.box(187, y, call, "weight", 170, 36, look="code")
        d.arrow(idx.right, (96, 110), (96, y), box.left)
        for t, kind in enumerate(kinds):
            if kind:
                d.box(290 + 26 * t, y, "", kind, 22, 28, radius=0)
        d.text(329, y - 28 if y < 100 else y + 28, said)
        d.arrow(box.right, (276 if kinds[0] else 354, y))
    for t in range(4):
        kind = "query" if t == 3 else "value"
        x = 374 + 26 * t
        d.box(x - 8, 110, "", kind, 22, 28, radius=0)
        end = (290 + 26 * t, 66) if t < 3 else (368, 154)
        d.arrow(end, (x - 8, 96 if t < 3 else 124), kind=kind)
    d.text(120, 206, "in evaluation mode")
    return d


def whose_mistake() -> Diagram:
    """Workshop H: a reader's piece is compared with the book's, then with the book's with a mistake in it."""
    d = Diagram(474, 300)
    yours = d.box(80, 36, "the reader's piece", "query", 142, 34)
    probes = d.box(80, 112, "probes", "norm", 100, 34)
    d.arrow(yours.bottom, probes.top)
    book = d.box(300, 36, "the book's piece", "weight", 142, 34)
    d.arrow(book.bottom, (300, 112), probes.right)
    right = d.box(80, 196, "equal: it takes\nthe book's place", "value", 142, 46)
    d.arrow(probes.bottom, right.top, label="equal", look="over")
    planted = d.box(300, 196, "the book's piece with\na usual mistake, one by one", "memory", 210, 46)
    d.arrow((300, 112), planted.top, label="not equal", look="over", dashed=True, at=(300, 144))
    named = d.box(210, 274, "the same wrong values:\nits name", "logits", 186, 44)
    other = d.box(396, 274, "none fits: the first\nprobe that differs", "plain", 146, 44)
    d.arrow((250, 219), (250, 236), (210, 236), named.top)
    d.arrow((350, 219), (350, 236), (396, 236), other.top)
    return d


def stop_of_a_server() -> Diagram:
    """Workshop I: what is accepted is answered after the signal, and what is late is told to go elsewhere."""
    d = Diagram(474, 220)
    start, stop, end = 96, 176, 396
    d.arrow((start, 28), (stop, 28), kind="value", wide=True, tip=False)
    d.text(8, 28, "takes work", "start")
    d.text(8, 82, "requests", "start")
    d.text(stop, 200, "SIGTERM")
    d.text(end, 200, "20 seconds")
    for x in (stop, end):
        d.arrow((x, 14), (x, 186), dashed=True, tip=False)
    rows = ((104, 134, "200", "value"), (140, 250, "200", "value"), (160, 396, "503", "logits"))
    for i, (x0, x1, status, kind) in enumerate(rows):
        y = 62 + 32 * i
        d.arrow((x0, y), (x1, y), kind=kind)
        d.text(x1 + 8, y, status, "code start over")
    d.arrow((190, 158), (214, 158), kind="logits")
    d.text(220, 158, "a new connection: refused", "start over")
    return d


def what_may_come_in() -> Diagram:
    """Workshop J: what is asked of an argument, one question after another, and what refuses it."""
    d = Diagram(470, 414)
    rows = (
        (98, "of the right kind?", "type, dtype", "TypeError"),
        (166, "within its bounds?", "size, rate, choice, shape", "ValueError"),
        (234, "are its ids tokens?", "smallest and largest", "IndexError"),
        (302, "does it fit the rest?", "heads and width, batch, device", "ValueError"),
    )
    above = d.box(190, 28, "an argument, by its name", "plain", 200, 34)
    for y, question, what, refusal in rows:
        box = d.box(190, y, f"{question}\n{what}", "memory" if refusal == "IndexError" else "norm", 244, 46)
        d.arrow(above.bottom, box.top)
        away = d.box(408, y, refusal, "logits", 112, 30, look="code")
        d.arrow(box.right, away.left, kind="logits")
        above = box
    inside = d.box(190, 384, "the stacks and their layers,\nwhich do not ask again", "attention", 244, 46)
    d.arrow(above.bottom, inside.top, kind="value")
    d.arrow((68, 166), (26, 166), (26, 302), (68, 302), dashed=True)
    d.text(12, 234, "numbers not read", turn=-90)
    return d


def when_numbers_are_read() -> Diagram:
    """Workshop J: whether a check looks at the numbers of a tensor."""
    d = Diagram(470, 380)
    rows = (
        ("a placeholder?", ("yes", "not read", "plain"), "no"),
        ("on the CPU?", ("yes", "read", "value"), "no"),
        ("always=True?", ("no", "not read", "plain"), "yes"),
        ("on the meta device?", ("yes", "ValueError:\nthere are none", "logits"), "no"),
    )
    above = d.box(120, 24, "a tensor of ids", "query", 164, 32)
    below = ""
    for i, (question, (answer, outcome, kind), other) in enumerate(rows):
        box = d.box(120, 92 + 66 * i, question, "norm", 164, 34)
        d.arrow(above.bottom, box.top)
        d.text(132, above.y + (box.y - above.y) / 2, below, "start")
        out = d.box(376, box.y, outcome, kind, 150, 34 + 10 * ("\n" in outcome))
        d.arrow(box.right, out.left, label=answer, look="over", kind=kind)
        above, below = box, other
    waits = d.box(120, 356, "read; the host waits", "value", 164, 34)
    d.arrow(above.bottom, waits.top, kind="value")
    d.text(132, 323, below, "start")
    return d


def frames_of_a_verb() -> Diagram:
    """Workshop A: a verb, its prepositions, what may follow them, and the English that each becomes."""
    d = Diagram(470, 196)
    verb = d.box(52, 98, "falar", "weight", 80, 34)
    rows = (
        (30, "–", "a language", "speak"),
        (98, "com", "somebody", "talk to"),
        (166, "de", "somebody, a book …", "talk about"),
    )
    for y, preposition, objects, english in rows:
        joined = d.box(156, y, preposition, "norm", 60, 30)
        bend = () if y == verb.y else ((108, 98), (108, y))
        d.arrow(verb.right, *bend, joined.left)
        allowed = d.box(272, y, objects, "query", 144, 30)
        d.arrow(joined.right, allowed.left)
        said = d.box(416, y, english, "key", 96, 30)
        d.arrow(allowed.right, said.left)
    return d


def form_of_a_text() -> Diagram:
    """Workshop E: a text is brought into the form of the corpus, and its translation is brought back."""
    d = Diagram(470, 196)
    typed = d.box(110, 36, "O João não veio.", "plain", 180, 32)
    read = d.box(110, 150, "o joão não veio .", "query", 180, 32)
    written = d.box(360, 150, "joão did n't come .", "key", 180, 32)
    shown = d.box(360, 36, "joão didn't come.", "plain", 180, 32)
    d.arrow(typed.bottom, read.top, label="lower case, tokens apart", look="over")
    d.arrow(read.right, written.left)
    d.arrow(written.top, shown.bottom, label="tokens together again", look="over")
    d.text(235, 130, "model")
    d.text(235, 186, "what the corpus looks like")
    return d


def pieces_to_words() -> Diagram:
    """Workshop F: of the weights of pieces, columns are added and rows are averaged."""
    d = Diagram(474, 196)
    size = 46
    panels = (
        (94, "pieces", ("gos", "to", "."), (("li", (0.5, 0.3, 0.2)), ("ke", (0.3, 0.1, 0.6)))),
        (254, "columns added", ("gosto", "."), (("li", (0.8, 0.2)), ("ke", (0.4, 0.6)))),
        (412, "rows averaged", ("gosto", "."), (("like", (0.6, 0.4)),)),
    )
    for x, name, columns, rows in panels:
        d.text(x, 18, name, "bold")
        for j, column in enumerate(columns):
            d.text(x + size * (j - (len(columns) - 1) / 2), 52, column)
        words = [[f"{weight:.1f}" for weight in weights] for _, weights in rows]
        kinds = [["attention"] * len(columns) for _ in rows]
        grid = d.grid(x, 68 + size * len(rows) / 2, kinds, size, words)
        for i, (row, _) in enumerate(rows):
            d.text(x - grid.width / 2 - 4, 68 + size * (i + 0.5), row, "end")
    d.text(237, 182, "each row still sums to 1")
    return d


def asked_of_a_model() -> Diagram:
    """Workshop H: the input of the checks, whose three sizes differ."""
    d = Diagram(474, 226)
    size = 30
    inputs = (130, 7, "source", "[B, S] = [3, 7]"), (378, 5, "target", "[B, T] = [3, 5]")
    for x, columns, name, shape in inputs:
        kinds = [
            [
                "norm" if name == "source" and s >= columns - row else
                "logits" if name == "target" and s == 0 else
                ("query", "key", "value")[(s + 2 * row) % 3]
                for s in range(columns)
            ]
            for row in range(3)
        ]  # fmt: skip
        d.text(x, 20, name, "bold")
        d.grid(x, 92, kinds, size)
        d.text(x, 152, shape, "code")
    for x, kind, meaning in (
        (20, "norm", "cut off, so that lengths differ"),
        (288, "logits", "start token"),
    ):
        d.box(x, 186, "", kind, 20, 16, radius=0)
        d.text(x + 16, 186, meaning, "start")
    d.text(237, 214, "neighbors differ, and each token has another one to be replaced by")
    return d


def killed_while_writing() -> Diagram:
    """Workshop D: the steps of `atomic_file`, and what a kill after each of them leaves in the folder."""
    d = Diagram(474, 262)
    steps = (
        ("empty\nfile", "old", "empty"),
        ("write", "old", "a part"),
        ("fsync", "old", "whole"),
        ("rename", "new", ""),
        ("fsync of\nfolder", "new", ""),
    )
    d.text(8, 32, "step", "start")
    d.text(8, 96, "best.pt", "code start")
    d.text(8, 136, "….part", "code start")
    d.text(8, 190, "killed", "start")
    d.text(8, 207, "after it", "start")
    before: Box | None = None
    for i, (step, named, beside) in enumerate(steps):
        x = 112 + 80 * i
        box = d.box(x, 32, step, "attention", 68, 44)
        if before is not None:
            d.arrow(before.right, box.left)
        before = box
        d.box(x, 96, named, "query" if named == "old" else "value", 72, 28, radius=0)
        d.box(x, 136, beside, "memory" if beside else "norm", 72, 28, radius=0)
    d.arrow((312, 64), (312, 222), dashed=True, tip=False)
    d.text(192, 190, "the old file, and another that")
    d.text(192, 207, "the next run removes")
    d.text(392, 190, "the new file,")
    d.text(392, 207, "and nothing else")
    d.text(237, 246, "if the power fails before the last step, the old one or the new")
    return d


def weights_that_fit() -> Diagram:
    """Workshop D: the ways in which a file's weights do not fit, and what becomes of the model."""
    d = Diagram(474, 386)
    d.text(92, 18, "the file", "bold")
    d.text(382, 18, "the model", "bold")
    rows = (
        (50, "w_q  [32, 32]", "w_q  [32, 32]", "fits", "value"),
        (92, "gate  [32]", "", "no such name", "logits"),
        (134, "", "bias  [32]", "missing", "logits"),
        (176, "w_1  [64, 32]", "w_1  [128, 32]", "shape", "logits"),
        (218, "w_2  int64", "w_2  float32", "no floats", "logits"),
    )
    for y, given, own, said, kind in rows:
        left = d.box(92, y, given, "weight" if given else "norm", 148, 30, radius=0, look="code")
        right = d.box(382, y, own, "weight" if own else "norm", 148, 30, radius=0, look="code")
        d.arrow(left.right, right.left, kind=kind, tip=False, dashed=kind == "logits")
        d.text(237, y, said, "over")
    table = d.box(382, 278, "one table with\ntwo names", "weight", 148, 46, radius=0)
    for y, name in ((260, "tgt_embedding"), (296, "output")):
        given = d.box(92, y, name, "weight", 148, 30, radius=0, look="code")
        d.arrow(given.right, (188, y), (188, 278), table.left, kind="logits", tip=False, dashed=True)
    d.text(246, 278, "not equal", "over")
    d.box(118, 356, "all of it fits: copied", "value", 204, 44)
    d.box(355, 356, "one thing does not:\nthe model as it was", "logits", 204, 44)
    d.arrow((8, 322), (466, 322), tip=False, dashed=True)
    return d


def killed_between_files() -> Diagram:
    """Workshop D: what an evaluation writes into a run's folder, and what follows a kill after each file."""
    d = Diagram(474, 318)
    d.frame(130, 160, 246, 252)
    d.text(16, 18, "the folder, locked by run.lock", "start")
    d.text(368, 18, "killed after it, the next call", "over")
    rows = (
        ("log.jsonl", "one line more, or two", "goes on from update\n20, without the lines", "query"),
        ("checkpoint-00000040.pt", "new", "writes best.pt,\nif these are the best", "weight"),
        ("best.pt", "replaced, if these are the best", "removes the oldest", "weight"),
        ("checkpoint-00000000.pt", "removed, since two are kept", "goes on", "norm"),
    )
    above: Box | None = None
    for i, (name, what, then, kind) in enumerate(rows):
        y = 62 + 62 * i
        box = d.box(130, y, "", kind, 226, 46)
        d.text(130, y - 9, name, "code")
        d.text(130, y + 9, what)
        if above is not None:
            d.arrow(above.bottom, box.top)
        above = box
        after = d.box(390, y, then, "memory" if i < 3 else "value", 158, 46)
        d.arrow(box.right, after.left, dashed=True)
    d.text(237, 304, "the lock ends with its process, in whatever way that ends")
    return d


def who_reads_which_batch() -> Diagram:
    """Workshop D: groups of batches over the ends of epochs, for one process and for two."""
    d = Diagram(474, 272)
    pitch, kinds = 38, ("query", "value", "memory")

    def at(batch: float) -> float:
        return 28 + pitch * batch

    names = [f"{batch // 5}{'abcde'[batch % 5]}" for batch in range(12)]
    for epoch, middle in enumerate((2, 7, 10.5)):
        d.text(at(middle), 14, f"epoch {epoch}")
    for end in (4.5, 9.5):
        d.arrow((at(end), 4), (at(end), 48), dashed=True, tip=False)
    rows = (
        (66, "one process, 4 batches", lambda _: True),
        (124, "process 0 of two, 2 batches", lambda place: place % 2 == 0),
        (178, "process 1 of two, 2 batches", lambda place: place % 2 == 1),
    )
    for y, said, reads in rows:
        d.text(10, y - 25, said, "start over")
        for batch, name in enumerate(names):
            own = reads(batch % 4)
            d.box(at(batch), y, name if own else "", kinds[batch // 4] if own else "norm", 34, 28, radius=0)
    places = ("0, 4", "1, 3", "2, 2")
    for group, place in enumerate(places):
        x = at(4 * group + 3) + 19 - (2 if group == 2 else 0)
        d.arrow((x, 216), (x, 198), kind=kinds[group])
        d.text(x, 228, place, "code end" if group == 2 else "code")
    d.text(10, 228, "epoch, position", "start")
    d.text(237, 256, "two numbers are the whole place in the data")
    return d


def log_after_a_kill() -> Diagram:
    """Workshop D: a run was stopped in update 27 and later killed; what is kept of its log."""
    d = Diagram(474, 304)
    d.text(104, 18, "log.jsonl, as a kill left it", "bold")
    rows = (
        ("step 10, loss, rate, …", "query", ""),
        ("step 20, loss, rate, …", "query", ""),
        ("step 20, the metrics", "value", ""),
        ("step 30, loss, rate, …", "logits", "later than 27: cut off"),
        ("step 4", "logits", "has no end: cut off"),
    )
    for i, (line, kind, said) in enumerate(rows):
        y = 50 + 34 * i
        width = 192 if i < 4 else 70
        box = d.box(8 + width / 2, y, line, kind, width, 28, radius=0)
        if said:
            d.arrow((284, y), (box.right[0] + 4, y), kind="logits", dashed=True)
            d.text(290, y, said, "start")
    begun = "checkpoint-00000027.pt\nwith the line that has\nbegun: 21 to 27"
    kept = d.box(362, 66, begun, "memory", 200, 66)
    old = d.box(122, 246, "21 to 27, from the checkpoint", "memory", 228, 30, radius=0)
    d.arrow((462, kept.bottom[1]), (462, 214), (122, 214), old.top, kind="memory")
    d.box(308, 246, "28 to 30, again", "attention", 136, 30, radius=0)
    d.arrow((376, 246), (394, 246))
    d.box(432, 246, "step 30", "query", 74, 30, radius=0)
    d.text(237, 286, "the next call writes the line of step 30 as it was, but for seconds")
    return d


def settings_that_agree() -> Diagram:
    """Workshop D: what a checkpoint records of a run's settings, and what may be another when it goes on."""
    d = Diagram(474, 342)
    d.text(74, 18, "the run has", "bold")
    d.text(300, 18, "its checkpoint says", "bold")
    rows = (
        ("TrainingConfig", "each value but steps and keep", "query", "code"),
        ("model.config", "each value", "query", "code"),
        ("schedule", "rates of updates 1, 10, 100", "value", ""),
        ("loss", "its options: numbers, texts", "value", ""),
        ("batches", "a checksum of the very first", "value", ""),
    )
    for i, (part, said, kind, look) in enumerate(rows):
        y = 50 + 42 * i
        one = d.box(74, y, part, kind, 132, 32, look=look)
        other = d.box(300, y, said, "memory", 240, 32)
        d.arrow(one.right, other.left)
        d.text(430, y, "=" if part != "schedule" else "= *", "bold start")
    d.text(8, 258, "* not compared in a run that is made longer", "start")
    d.box(118, 308, "all equal: it goes on,\nwith other steps or keep", "value", 208, 46)
    d.box(356, 308, "refused by the name of\nthe setting, nothing changed", "logits", 222, 46)
    return d


def numbers_of_devices() -> Diagram:
    """Workshop C: which of eight devices share matrices, the batch and the layers, by their numbers."""
    d = Diagram(474, 306)
    kinds = ("query", "value", "memory", "key")
    at = [93 + 40 * i + 14 * (i > 3) for i in range(8)]
    for machine in range(2):
        middle = (at[4 * machine] + at[4 * machine + 3]) / 2
        d.frame(middle, 141, 156, 222)
        d.text(middle, 14, f"machine {machine}")
    d.text(415, 14, "over", "start")
    rows = (
        (54, "tensor", "matrices", 1, ((0, 1), (2, 3), (4, 5), (6, 7)), "link"),
        (112, "data", "batch", 2, ((0, 2), (1, 3), (4, 6), (5, 7)), "link"),
        (180, "pipeline", "layers", 4, ((0, 4), (1, 5), (2, 6), (3, 7)), "network"),
    )
    for y, name, what, stride, groups, rate in rows:
        d.text(4, y - 9, name, "code start")
        d.text(4, y + 9, what, "start")
        d.text(415, y, rate, "start")
        for i, ((one, other), kind) in enumerate(zip(groups, kinds, strict=True)):
            depth = y + 24 + 10 * (i % stride)
            for device in (one, other):
                d.arrow((at[device], y + 14), (at[device], depth), kind=kind, tip=False)
            d.arrow((at[one], depth), (at[other], depth), kind=kind, tip=False)
        for pair, kind in zip(groups, kinds, strict=True):
            for device in pair:
                d.box(at[device], y, f"{device}", kind, 32, 28, radius=0)
    d.text(237, 272, "a device's number is")
    d.text(237, 292, "its part of matrices + 2 · its part of the batch + 4 · its stage")
    return d


def parts_of_a_plan() -> Diagram:
    """Workshop C: the parts that a step's bytes and seconds are added up from, and what limits it."""
    d = Diagram(474, 370)
    d.text(98, 16, "bytes of a device", "bold")
    d.text(338, 16, "seconds of a step", "bold")
    memory = (
        ("parameters", "4 or 2 each", "weight"),
        ("averages", "8 or 12", "weight"),
        ("gradients", "4 or 2", "logits"),
        ("activations", "and logits", "memory"),
    )
    time = (
        ("arithmetic", "products", "attention"),
        ("bandwidth", "to and from memory", "attention"),
        ("launches", "starting operations*", "attention"),
        ("data", "gradients, weights*", "query"),
        ("tensor", "sums in every layer", "query"),
        ("stages", "to the next stage", "query"),
        ("bubble", "stages without work", "norm"),
    )
    for x, width, height, parts in ((98, 188, 49, memory), (338, 264, 28, time)):
        for i, (name, what, kind) in enumerate(parts):
            y = 32 + height * (i + 0.5)
            d.box(x, y, "", kind, width, height, radius=0)
            d.text(x - width / 2 + 8, y, name, "code start")
            d.text(x + width / 2 - 8, y, what, "end")
    d.text(338, 242, "* what it takes longer than the rows above it")
    left = d.box(98, 292, "more than its memory?", "plain", 176, 34)
    right = d.box(338, 292, "which part is the largest?", "plain", 190, 34)
    d.arrow((98, 228), left.top)
    d.arrow((338, 254), right.top)
    d.arrow(left.right, right.left, label="no", look="over")
    limit = d.box(218, 350, "limit", "value", 90, 32, look="code")
    d.arrow(left.bottom, (98, 350), limit.left, label="yes", look="over")
    d.arrow(right.bottom, (338, 350), limit.right)
    return d


def steps_on_a_gpu() -> Diagram:
    """Workshop B: the steps of `gpu`, one of which fails and one of which is stopped, and its record."""
    d = Diagram(474, 340)
    d.text(168, 18, "a process each", "bold")
    d.text(376, 18, "gpu.json", "code")
    d.frame(376, 163, 180, 260)
    steps = (
        ("tests", "status 0", "value"),
        ("bench roofline", "status 0", "value"),
        ("bench training", "status 1, failed", "logits"),
        ("…", "status 0 each", "value"),
        ("bench peak", "status null, stopped", "logits"),
        ("train ted-small", "status 0", "value"),
    )
    above: Box | None = None
    for i, (step, status, kind) in enumerate(steps):
        y = 54 + 42 * i + 12 * (i == 5)
        box = d.box(168, y, step, "attention" if i < 5 else "query", 144, 28, look="code")
        if above is not None:
            d.arrow(above.bottom, box.top)
        above = box
        d.arrow(box.right, (294, y))
        d.box(376, y, status, kind, 160, 28, radius=0)
    d.text(8, 130, "half of the", "start")
    d.text(8, 148, "minutes", "start")
    d.text(8, 267, "the other", "start")
    d.text(8, 285, "half", "start")
    d.arrow((8, 249), (264, 249), dashed=True, tip=False)
    d.text(237, 322, "failed: bench training, bench peak", "code")
    return d


def language_model_flow() -> Diagram:
    """Workshop K: from token ids to the next token, alone or with guesses, and what the model is told."""
    d = Diagram(474, 470)
    ids = d.box(170, 28, "ids", "plain", 92, 30)
    embedding = d.box(170, 92, "embedding", "weight", 120, 30)
    d.frame(170, 198, 236, 136)
    d.text(66, 144, "N layers", "start")
    attention = d.box(170, 176, "norm, grouped attention", "attention", 196, 42)
    network = d.box(170, 234, "norm, gated network", "value", 196, 34)
    output = d.box(170, 302, "norm, output table", "weight", 160, 30)
    logits = d.box(170, 360, "logits", "logits", 92, 30)
    d.arrow(ids.bottom, embedding.top, label="[B, T]")
    d.arrow(embedding.bottom, attention.top, label="[B, T, d]", at=(222, 120))
    d.arrow(attention.bottom, network.top)
    d.arrow(network.bottom, output.top)
    d.arrow(output.bottom, logits.top, label="[B, T, V]")
    d.box(384, 28, "LanguageModelConfig", "norm", 170, 30, look="code")
    places = d.box(388, 108, "mask, cosines\nand sines", "key", 120, 44)
    d.box(388, 182, "KeyValueCache", "memory", 120, 34, look="code")
    d.arrow((388, 43), places.top)
    d.arrow((328, 108), (308, 108), (308, 164), (268, 164), kind="key")
    d.arrow((268, 177), (328, 177), kind="memory")
    d.arrow((328, 189), (268, 189), kind="memory")
    alone = d.box(102, 424, "generate\nchooses one", "query", 132, 48)
    guessed = d.box(276, 424, "accept keeps guesses,\nand draws one more", "query", 172, 48)
    draft = d.box(420, 330, "draft model", "attention", 96, 34)
    d.arrow((152, 375), (152, 388), (102, 388), alone.top, kind="logits")
    d.arrow((188, 375), (188, 388), (250, 388), (250, 400), kind="logits")
    d.arrow(draft.bottom, (420, 424), guessed.right, label="guesses", at=(420, 386), look="")
    d.arrow(alone.left, (18, 424), (18, 28), ids.left, kind="query")
    d.arrow((276, 448), (276, 460), (18, 460), (18, 420), kind="query", tip=False)
    return d


def way_through_the_attention() -> Diagram:
    """Workshop K: the shapes inside grouped attention, and what its cache holds."""
    d = Diagram(474, 480)
    x = d.box(190, 26, "x", "plain", 60, 28)
    d.text(230, 26, "[B, T, d]", "code start")
    columns = ((48, "Q", "query", "H"), (190, "K", "key", "H_{kv}"), (332, "V", "value", "H_{kv}"))
    for across, letter, kind, heads in columns:
        table = d.box(across, 94, f"W^{{{letter}}}", "weight", 76, 30)
        d.arrow(x.bottom, *([] if across == x.x else [(x.x, 60), (across, 60)]), table.top)
        d.text(across + 10, 128, f"[B, {heads}, T, d_{{k}}]", "code start")
        end = (across, 377) if letter == "Q" else (across, 253)
        if letter == "V":
            d.arrow(table.bottom, end, kind=kind)
            continue
        norm = d.box(across, 160, "norm", "norm", 76, 28)
        turned = d.box(across, 210, "rotate", kind, 76, 28)
        d.arrow(table.bottom, norm.top, kind=kind)
        d.arrow(norm.bottom, turned.top, kind=kind)
        d.arrow(turned.bottom, end, kind=kind)
    d.box(261, 272, "cache, which has S positions then", "memory", 270, 36)
    d.box(261, 336, "each head H / H_{kv} times", "norm", 270, 30)
    for across, kind in ((190, "key"), (332, "value")):
        d.arrow((across, 290), (across, 321), kind=kind)
        d.text(across + 10, 305, "[B, H_{kv}, S, d_{k}]", "code start")
        d.arrow((across, 351), (across, 377), kind=kind)
    product = d.box(190, 394, "attention, under the mask", "attention", 360, 34)
    output = d.box(190, 452, "W^{O}", "weight", 76, 30)
    d.arrow(product.bottom, output.top)
    d.text(200, 424, "[B, T, H d_{k}]", "code start")
    d.arrow(output.right, (273, 452))
    d.text(281, 452, "[B, T, d]", "code start")
    return d


def positions_after_a_guess() -> Diagram:
    """Workshop K: what both models have read of four guesses, and keep when the third is refused."""
    d = Diagram(474, 250)
    rows = (
        ("written, and guessed", ["plain"] * 5 + ["query"] * 4),
        ("the draft has read", ["key"] * 8),
        ("the model has read", ["attention"] * 9),
        ("accepted", ["plain"] * 5 + ["value"] * 2 + ["logits"]),
        ("both caches keep", ["memory"] * 7),
    )
    for row, (name, kinds) in enumerate(rows):
        y = 40 + 46 * row
        d.text(8, y, name, "start")
        missing = [""] * (9 - len(kinds))
        words = [str(place + 1) if row in (0, 3) else "" for place in range(len(kinds))]
        d.grid(314, y, [kinds + missing], 34, [words + missing])
    d.text(314, 14, "position")
    return d
