// A gradient on its way down a deep stack, for Chapter 4: with and without residuals, in both orders of the norm.
"use strict";
{
  const { html, scientific, slider, range } = live;
  const { Tape, Rows, steps, generator } = live.learning(Float64Array);
  const { linear, relu, attention, add, layer_norm } = steps;
  const T = 8, D = 32, HEADS = 4, DEEPEST = 48;

  // What stands around a sublayer f, as in equations (4.1) and (4.5).
  const ORDERS = {
    chain: { name: "y = f(x)", around: (tape, x, f) => f(x) },
    sum: { name: "y = x + f(x)", around: (tape, x, f) => add(tape, x, f(x)) },
    post: { name: "post-norm", around: (tape, x, f, norm) => norm(add(tape, x, f(x))) },
    pre: { name: "pre-norm", around: (tape, x, f, norm) => add(tape, x, f(norm(x))) },
  };

  const rows = (size, value) => new Rows(Float64Array.from({ length: size }, value));
  const normal = (random) => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());

  // Small networks start as PyTorch's dense layers do, encoder layers as Chapter 5's, Xavier-uniform.
  function dense(random, n_in, n_out, xavier) {
    const bound = Math.sqrt(xavier ? 6 / (n_in + n_out) : 1 / n_in);
    const uniform = (size) => rows(size, () => bound * (2 * random() - 1));
    return { weight: uniform(n_in * n_out), bias: xavier ? rows(n_out, () => 0) : uniform(n_out), n_in };
  }

  const apply = (tape, x, { weight, bias, n_in }) => linear(tape, x, weight, bias, n_in);
  const network = (tape, [w_1, w_2]) => (x) => apply(tape, relu(tape, apply(tape, x, w_1)), w_2);

  function self_attention(tape, [w_q, w_k, w_v, w_o]) {
    const sizes = { B: 1, T, S: T, d_model: D, n_heads: HEADS, scale: Math.sqrt(HEADS / D), visible: () => true };
    return (x) => apply(tape, attention(tape, ...[w_q, w_k, w_v].map((w) => apply(tape, x, w)), sizes).context, w_o);
  }

  // The sublayers of one layer, as lists of dense layers: a network, or attention and a network.
  const KINDS = {
    networks: (random) => [[dense(random, D, 2 * D), dense(random, 2 * D, D)]],
    layers: (random) => [range(1, 4).map(() => dense(random, D, D, true)), [dense(random, D, 4 * D, true), dense(random, 4 * D, D, true)]],
  };

  // The first layers of a kind, from a seed: drawn once for all orders and depths.
  let drawn;
  function layers_of(kind, depth, seed) {
    if (drawn?.name !== `${kind} ${seed}`) drawn = { name: `${kind} ${seed}`, random: generator(seed), layers: [] };
    while (drawn.layers.length < depth) drawn.layers.push(KINDS[kind](drawn.random));
    return drawn.layers.slice(0, depth);
  }

  // The stream x₀, x₁, …, with the gradient that a random one on top sends to each of them. `order` is one for all
  // layers, or a list with one for each.
  function stack(kind, order, depth, seed) {
    const tape = new Tape(), layers = layers_of(kind, depth, seed);
    const [ones, zeros] = [rows(D, () => 1), rows(D, () => 0)];
    const norm = (x) => layer_norm(tape, x, ones, zeros);
    const draw = generator(seed + 1000);
    let x = rows(T * D, () => normal(draw));
    const stream = [x];
    for (const [l, layer] of layers.entries()) {
      for (const sublayer of layer) {
        const f = (sublayer.length === 4 ? self_attention : network)(tape, sublayer);
        x = ORDERS[Array.isArray(order) ? order[l] : order].around(tape, x, f, norm);
      }
      stream.push(x);
    }
    const top = kind === "layers" && order === "pre" ? norm(x) : x; // the final norm
    const given = Float64Array.from(top.data, () => normal(draw));
    top.grad.set(given);
    tape.backward();
    return { stream, given, layers };
  }

  // A position's own part: its row less the mean over positions.
  function own(x) {
    const mean = new Float64Array(D);
    x.forEach((value, i) => (mean[i % D] += value / T));
    return x.map((value, i) => value - mean[i % D]);
  }

  const length_of = (x) => Math.sqrt(x.reduce((sum, value) => sum + value * value, 0));

  // What is drawn of a stack: on the left what arrives of the gradient, on the right the stream's size or its own share.
  function measured(kind, order, depth, seed) {
    const { stream, given } = stack(kind, order, depth, seed);
    const part = kind === "layers" ? own : (x) => x;
    const right = kind === "layers" ? ({ data }) => (length_of(own(data)) / length_of(data)) ** 2 : ({ data }) => length_of(data) / Math.sqrt(T * D);
    return { left: stream.map(({ grad }) => length_of(part(grad)) / length_of(part(given))), right: stream.map(right) };
  }

  // The chapter's predictions, as functions of the place in the stream; `right` is what has been measured.
  const PREDICTED = {
    networks: (depth) => ({
      chain: { left: (l) => 18 ** ((l - depth) / 2) },
      sum: { left: (l) => (19 / 18) ** ((depth - l) / 2), right: (l) => (19 / 18) ** (l / 2) },
      post: { left: () => 1, right: () => 1 },
      pre: { left: (l) => Math.sqrt((18 + depth) / (18 + l)), right: (l) => Math.sqrt(1 + l / 18) },
    }),
    layers: (depth, { right }) => ({
      post: { left: (l) => (l > depth / 2 ? 2 ** ((l - depth) / 2) : NaN), right: (l) => (l < 8 ? NaN : right[8] * 2 ** (8 - l)) },
      pre: {},
    }),
  };

  function build() {
    const choose = (kind, name, checked) => html("label", {}, html("input", { type: "radio", name: "live-depth-kind", value: kind, checked, change: update }), ` ${name}`);
    const kinds = [choose("networks", "small networks", true), choose("layers", "encoder layers", false)];
    const depth = slider("Depth", range(1, DEEPEST), 24, String, update);
    const again = html("button", { type: "button", class: "live-button", click: () => { seed = (seed + 1) % 100; update(); } }, "Other weights");
    const [left, right] = [new live.Plot("live-orders", 480, 200), new live.Plot("live-orders", 480, 200)];
    const said = html("output", { class: "live-said live-legend" });
    let seed = 0;

    const number = (value) => (value < 0.01 ? scientific(value, 0) : value.toFixed(2));
    const power = (value) => (value < 1 ? scientific(value, 0).slice(4) : String(value)); // without its "1 · "
    const ends = (runs, side, log) => {
      const values = Object.values(runs).flatMap((run) => run[side]);
      const [low, high] = [Math.min(...values), Math.max(...values)];
      return log ? { from: 10 ** Math.floor(Math.log10(low) - 0.01), to: 10 ** Math.ceil(Math.log10(high) + 0.01), log, show: power } : { from: 0, to: 1.1 * high };
    };

    function update() {
      const kind = kinds.find((label) => label.firstChild.checked)?.firstChild.value ?? "networks";
      const networks = kind === "networks", what = networks ? "network" : "layer";
      const orders = networks ? Object.keys(ORDERS) : ["post", "pre"];
      const runs = Object.fromEntries(orders.map((order) => [order, measured(kind, order, depth.value, seed)]));
      const predicted = PREDICTED[kind](depth.value, runs.post);
      const places = range(0, depth.value);
      const across = { from: 0, to: depth.value, label: `after ${what}` };
      const words = orders.map((order) => {
        const { left: arrived, right: reached } = runs[order];
        const wanted = networks ? ` (predicted ${number(predicted[order].left(0))})` : "";
        const value = networks ? ` ${number(arrived[0])}${wanted}` : ` own gradient at its least ${number(Math.min(...arrived))}, own share on top ${number(reached.at(-1))}`;
        return html("span", { class: `live-order live-${order}` }, html("b", {}, ORDERS[order].name), value);
      });
      const head = networks ? "Of the gradient arrives at the bottom:" : "Between positions:";
      said.replaceChildren(html("span", {}, head), " ", ...words.flatMap((each) => [each, " "]));
      left.axes(across, { ...ends(runs, "left", true), label: networks ? "share of the gradient" : "own part of gradient" }, said.textContent);
      right.axes(across, { ...ends(runs, "right", !networks), label: networks ? "size of the stream" : "own share of stream" }, `${networks ? "Size" : "Own share"} of the stream after each ${what}.`);
      for (const [plot, side] of [[left, "left"], [right, "right"]]) {
        for (const order of orders) {
          plot.curve(places.map((l, i) => [l, runs[order][side][i]]), `live-${order}`);
          const rule = predicted[order][side];
          if (rule) plot.curve(places.map((l) => [l, rule(l)]), `live-${order} live-predicted`);
        }
      }
    }

    update();
    return html("div", { class: "live-panel live-depth" },
      html("div", { class: "live-row live-kinds", role: "group", "aria-label": "A stack of" }, html("span", {}, "A stack of"), ...kinds, depth.row, again),
      html("div", { class: "live-halves" }, left.svg, right.svg), said);
  }

  live.depth = { stack, measured };
  live.mount("depth", build);
}
