// What a plus sign does for a gradient, for Chapter 4: a stack of small networks, each with its sum or without.
"use strict";
{
  const { html, svg, range, scientific } = live;
  const { Tape, Rows, steps, generator } = live.learning(Float64Array);
  const { linear, relu, add } = steps;
  const T = 8, D = 32, DEPTH = 10, EACH = 43;
  const LOWEST = -8, HIGHEST = 1; // powers of ten that are drawn

  const rows = (size, value) => new Rows(Float64Array.from({ length: size }, value));
  const normal = (random) => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());

  // A dense layer that starts as PyTorch's do.
  function dense(random, n_in, n_out) {
    const bound = Math.sqrt(1 / n_in), uniform = (size) => rows(size, () => bound * (2 * random() - 1));
    return { weight: uniform(n_in * n_out), bias: uniform(n_out), n_in };
  }

  const apply = (tape, x, { weight, bias, n_in }) => linear(tape, x, weight, bias, n_in);

  // The stream x₀, x₁, … through a network for each of `sums`, which says whether its input is added to its output,
  // with the gradient that a random one on top sends to each of them.
  function stack(sums, seed) {
    const tape = new Tape(), random = generator(seed), draw = generator(seed + 1000);
    const layers = sums.map(() => [dense(random, D, 2 * D), dense(random, 2 * D, D)]);
    const stream = [rows(T * D, () => normal(draw))];
    for (const [l, [w_1, w_2]] of layers.entries()) {
      const x = stream.at(-1), y = apply(tape, relu(tape, apply(tape, x, w_1)), w_2);
      stream.push(sums[l] ? add(tape, x, y) : y);
    }
    const top = stream.at(-1), given = Float64Array.from(top.data, () => normal(draw));
    top.grad.set(given);
    tape.backward();
    return { stream, given, layers };
  }

  const length_of = (x) => Math.sqrt(x.reduce((sum, value) => sum + value * value, 0));
  const number = (value) => (value < 0.01 ? scientific(value, 0) : value.toFixed(2));

  // What is left of a gradient of length 1 before each network, from the bottom up.
  function left_of(sums, seed) {
    const { stream, given } = stack(sums, seed);
    return stream.slice(0, -1).map(({ grad }) => length_of(grad) / length_of(given));
  }

  function build() {
    const sums = range(1, DEPTH).map((l) => l > DEPTH / 2);
    let seed = 0;
    const bars = svg("svg", { class: "live-bars", viewBox: "0 0 480 176", role: "img" });
    const said = html("output", { class: "live-said" });
    const button = (words, click, more = {}) => html("button", { type: "button", class: "live-button", click: () => { click(); update(); }, ...more }, words);
    const pluses = sums.map((_, l) => button("+", () => { sums[l] = !sums[l]; }, { "aria-label": `The sum around network ${l + 1}` }));
    const all = (value) => () => sums.fill(value);

    const height = (power) => 10 + (140 * (HIGHEST - power)) / (HIGHEST - LOWEST);

    function update() {
      const left = left_of(sums, seed);
      const axis = range(LOWEST, 0, 2).flatMap((power) => [
        svg("line", { class: power ? "live-faint" : "live-limit", x1: 48, y1: height(power).toFixed(1), x2: 480, y2: height(power).toFixed(1) }),
        svg("text", { x: 42, y: (height(power) + 5).toFixed(1), "text-anchor": "end" }, power ? scientific(10 ** power, 0).slice(4) : "1")]);
      const columns = left.map((share, l) => {
        const y = Math.min(148, height(Math.log10(share)));
        return svg("rect", { class: sums[l] ? "live-main" : "live-other", x: 52 + EACH * l, y: y.toFixed(1), width: EACH - 8, height: (150 - y).toFixed(1) });
      });
      const ends = [["bottom", 48, "start"], ["top", 480, "end"]].map(([text, x, anchor]) => svg("text", { x, y: 170, "text-anchor": anchor }, text));
      pluses.forEach((each, l) => each.setAttribute("aria-pressed", sums[l]));
      const lost = sums.filter((sum) => !sum).length;
      const how = lost === DEPTH ? "Without any plus sign" : lost ? `Without ${lost} of ${DEPTH} plus signs` : `With all ${DEPTH} plus signs`;
      const sentence = `${how}, a gradient of length 1 on top arrives at the bottom with length ${number(left[0])}.`;
      bars.setAttribute("aria-label", `Length of the gradient below each network. ${sentence}`);
      bars.replaceChildren(...axis, ...columns, ...ends);
      said.replaceChildren(sentence);
    }

    update();
    return html("div", { class: "live-panel live-pluses" }, html("div", { class: "live-halves" },
      html("div", {}, bars, html("div", { class: "live-plus-signs", role: "group", "aria-label": "Plus signs, from the bottom up" }, ...pluses)),
      html("div", {}, said, html("div", { class: "live-row" }, button("Take all away", all(false)), button("Put all back", all(true)),
        button("Other weights", () => { seed = (seed + 1) % 100; })))));
  }

  live.plus = { stack };
  live.mount("plus", build);
}
