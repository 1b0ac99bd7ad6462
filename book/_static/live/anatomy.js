// The whole model with one sentence in it, for Chapter 5: every box opens, and shows the numbers that leave it.
"use strict";
{
  const { html, svg, signed, slider, range } = live;
  const COLUMNS = 8; // of a tensor, as many as can be read

  // What there is to see of an attention: a name of `heads`, how it is written, whether its rows are the keys, and its color.
  const PARTS = [
    ["q", "Q", false, "query"], ["k", "K", true, "key"], ["weights", "softmax(QKᵀ/√dₖ)", false, "attention"],
    ["v", "V", true, "value"], ["context", "softmax(QKᵀ/√dₖ) V", false, "attention"], ["result", "after the sum", false, "plain"],
  ];

  // The tensors of one forward pass, in the order in which they are computed: stored by hooks, as in the chapter.
  function tensors_of(model, src, tgt) {
    const found = [];
    const hook = (owner, name, keep) => {
      const method = owner[name];
      owner[name] = (...given) => {
        const result = method.apply(owner, given);
        keep(result, ...given);
        return result;
      };
    };
    const keep = (result) => found.push(result);
    hook(model, "positions", (result, x) => found.push(x, result));
    for (const stack of [model.encoder, model.decoder]) {
      for (const layer of stack.layers) {
        for (const part of ["self_residual", "cross_residual", "feed_residual"]) if (layer[part]) hook(layer[part], "forward", keep);
      }
      if (stack.norm) hook(stack.norm, "forward", keep);
    }
    hook(model.output, "forward", keep);
    model.forward(src, tgt);
    return found;
  }

  // The boxes of one side, from the bottom up.
  function names_of(stack, ids, sublayers) {
    const layers = stack.layers.flatMap((_, n) => sublayers.map((name) => `${name} ${n + 1}`));
    return [ids, "embedding · √d", "+ positions", ...layers, ...(stack.norm ? ["norm"] : [])];
  }

  const kind_of = ({ name, attention }) => (attention ? "attention" : name === "logits" ? "logits" : name.startsWith("embedding") ? "weight" : "plain");

  function build(model, record) {
    const { src, tgt } = record.check;
    const vocabulary = new live.Vocabulary(record.vocabulary);
    const token = (id) => vocabulary.shown(id);
    const left = names_of(model.encoder, "source ids", ["self-attention", "network"]);
    const right = [...names_of(model.decoder, "target ids", ["self-attention", "cross-attention", "network"]), "logits"];
    const tensors = tensors_of(model, src, tgt);
    tensors.splice(left.length - 1, 0, tgt.map((id) => [id]));
    tensors.unshift(src.map((id) => [id]));
    const boxes = [...left, ...right].map((name, i) => {
      const column = i < left.length ? 0 : 1;
      const row = column ? i - left.length : i;
      const ids = column ? tgt : src;
      const side = column ? "decoder" : "encoder";
      const title = name.endsWith("ids") ? name : name === "logits" ? "logits, from the decoder's vectors" : `${name}, ${side}`;
      const [kind, layer] = name.split("-attention ");
      const attention = layer && model[side].layers[layer - 1][`${kind}_attention`];
      return { name, title, ids, attention, keys: kind === "cross" ? src : ids, tensor: tensors[i], x: 12 + 262 * column, y: 556 - 48 * row, row, column };
    });

    const drawing = svg("svg", { class: "live-anatomy", viewBox: "0 0 480 590", role: "img" });
    const numbers = svg("svg", { class: "live-numbers", role: "img" });
    const choice = slider("Box", range(0, boxes.length - 1), 3, (i) => `${boxes[i].title}`, show);
    const said = html("output", { class: "live-said" });
    const head = slider("Head", range(1, model.config.n_heads), 1, (number) => `${number} of ${model.config.n_heads}`, show);
    const radios = PARTS.map(([part, words]) => html("input", { type: "radio", name: "live-part", value: part, "aria-label": words, checked: part === "result", change: show }));
    const thumbs = PARTS.map(() => svg("svg", { "aria-hidden": "true", preserveAspectRatio: "none" }));
    const inside = html("fieldset", { class: "live-inside" }, html("legend", {}, "Inside this attention"), head.row, html("div", { class: "live-parts" },
      ...PARTS.map(([, words, , kind], i) => html("div", { class: `of-${kind}` }, html("label", { class: "live-head" }, radios[i], thumbs[i]), html("span", { class: "live-name", "aria-hidden": "true" }, words)))));
    const shape = ({ tensor }) => (tensor[0].length > 1 ? `[${tensor.length}, ${tensor[0].length}]` : `[${tensor.length}]`);

    function choose(i) {
      choice.input.value = i;
      choice.tell();
      show();
    }

    function draw() {
      const middle = (box) => box.x + 97;
      const arrow = (points, kind = "") => { // with a head, in the direction of the last two points
        const [[x0, y0], [x, y]] = points.slice(-2);
        const [dx, dy] = [Math.sign(x - x0), Math.sign(y - y0)];
        const head = `M${x - 5 * dx + 4 * dy} ${y - 5 * dy + 4 * dx}L${x} ${y}L${x - 5 * dx - 4 * dy} ${y - 5 * dy - 4 * dx}`;
        return svg("path", { class: `live-arrow ${kind}`, d: `M${points.join("L")}${head}` });
      };
      const memory = boxes[left.length - 1];
      const up = boxes.flatMap((box) => [
        box === memory ? "" : arrow([[middle(box), box.y], [middle(box), box.y - 18]]),
        svg("text", { class: "live-shape", x: middle(box) + 8, y: box.y - 4.5 }, shape(box)),
      ]);
      const across = boxes.filter(({ name }) => name.startsWith("cross")).map(({ x, y }) =>
        arrow([[memory.x + 194, memory.y + 15], [240, memory.y + 15], [240, y + 15], [x, y + 15]], "of-memory"));
      const drawn = boxes.map((box, i) => svg("g", { class: `live-part of-${kind_of(box)} ${i === choice.value ? "live-open" : ""}`, click: () => choose(i) },
        svg("rect", { x: box.x, y: box.y, width: 194, height: 30, rx: 5 }),
        svg("text", { x: middle(box), y: box.y + 20, "text-anchor": "middle" }, i === left.length - 1 ? `${box.name}: the memory` : box.name)));
      drawing.replaceChildren(...up, ...across, ...drawn);
      drawing.setAttribute("aria-label", `The model: ${boxes.map((box) => `${box.title} ${shape(box)}`).join(", ")}.`);
    }

    // The chosen part of a box: its rows, the tokens that they belong to, and how it is called.
    function part_of({ attention, ids, keys, tensor, title }) {
      const [part, words, of_keys] = PARTS[radios.findIndex(({ checked }) => checked)];
      if (!attention || part === "result") return { tensor, ids, title };
      return { tensor: attention.heads[head.value - 1][part], ids: of_keys ? keys : ids, columns: part === "weights" && keys, title: `${words} of head ${head.value}, ${title}` };
    }

    function draw_thumbs({ attention, tensor }) {
      inside.hidden = !attention;
      if (!attention) return;
      PARTS.forEach(([part], i) => {
        const rows = part === "result" ? tensor : attention.heads[head.value - 1][part];
        const largest = Math.max(...rows.flatMap((row) => [...row].map(Math.abs)));
        thumbs[i].setAttribute("viewBox", `0 0 ${rows[0].length} ${rows.length}`);
        thumbs[i].replaceChildren(...rows.flatMap((row, t) => [...row].map((number, s) => svg("rect", {
          class: number < 0 ? "live-below" : "live-above", x: s, y: t, width: 1, height: 1, "fill-opacity": (Math.abs(number) / largest).toFixed(2),
        }))));
      });
    }

    function show() {
      const box = boxes[choice.value];
      const { name } = box;
      const { title, ids, tensor, columns } = part_of(box);
      draw_thumbs(box);
      const rows = tensor.map((vector) => [...(columns ? vector : vector.slice(0, COLUMNS))]);
      const largest = Math.max(...rows.flat().map(Math.abs));
      const is_ids = tensor[0].length === 1;
      const wide = 400 / (columns ? columns.length : COLUMNS);
      const top = columns ? 24 : 0; // a row with the names of the keys
      numbers.setAttribute("viewBox", `0 0 480 ${26 * rows.length + 4 + top}`);
      numbers.setAttribute("aria-label", rows.map((row, t) => `${token(ids[t])}: ${row.map(is_ids ? String : signed).join(" ")}`).join("; "));
      const heads = (columns || []).map((id, i) => svg("text", { class: "live-key-name", x: 80 + wide * (i + 0.5), y: 18, "text-anchor": "middle" }, token(id)));
      numbers.replaceChildren(...heads, ...rows.flatMap((row, t) => [
        svg("text", { x: 72, y: 26 * t + 20 + top, "text-anchor": "end" }, token(ids[t])),
        ...row.flatMap((number, i) => [
          svg("rect", { class: number < 0 ? "live-below" : "live-above", x: 80 + wide * i, y: 26 * t + 3 + top, width: wide - 1, height: 25,
            "fill-opacity": is_ids ? 0 : ((0.6 * Math.abs(number)) / largest).toFixed(2) }),
          svg("text", { x: 80 + wide * (i + 1) - 6, y: 26 * t + 20 + top, "text-anchor": "end" }, is_ids ? String(number) : signed(number)),
        ]),
      ]));
      const most = (vector) => vector.indexOf(vector.reduce((a, b) => Math.max(a, b)));
      const says = name === "logits" ? ` The largest number of each row stands for: ${tensor.map((vector) => token(most(vector))).join(" ")}.` : "";
      const part = is_ids ? "one id for each token" : columns ? "a row for each query, a column for each key"
        : `the first ${COLUMNS} of ${tensor[0].length} numbers for each token`;
      said.replaceChildren(`${title[0].toUpperCase()}${title.slice(1)}, shape ${shape({ tensor })}: ${part}.${says}`);
      draw();
    }

    show();
    return html("div", { class: "live-panel live-whole" }, choice.row, html("div", { class: "live-halves" }, drawing, html("div", {}, numbers, said, inside)));
  }

  live.mount("anatomy", build, "phrases");
}
