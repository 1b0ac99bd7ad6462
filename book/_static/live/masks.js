// A mask, for Chapter 3: forbid positions one by one, and see what three ways to mask make of the weights.
"use strict";
{
  const { html, svg, percent } = live;
  const WORDS = ["start", "this", "is", "so", "pad"];
  const SCORES = [[0.6, 1.1, -0.4, 0.2, 0.5], [1.2, 0.3, 1.5, -0.6, 0.9], [0.1, 1.4, 0.8, 1.9, -0.2], [-0.5, 0.7, 2.1, 0.4, 1.3], [0.9, -0.8, 0.3, 1.0, 0.6]];
  const MASKS = {
    everything: () => true,
    padding: (t, s) => WORDS[s] !== "pad",
    causal: (t, s) => s <= t,
    both: (t, s) => MASKS.padding(t, s) && MASKS.causal(t, s),
  };
  // What stands for a forbidden score, and whether forbidden weights become zero afterward.
  const WAYS = { "−∞": [-Infinity, false], "−10⁹": [-1e9, false], "this book's": [-Number.MAX_VALUE, true] };

  function weights_of(scores, allowed, [low, zeroed]) {
    const masked = scores.map((score, s) => (allowed[s] ? score : low));
    const most = Math.max(...masked);
    const shares = masked.map((score) => Math.exp(score - most));
    const total = shares.reduce((sum, share) => sum + share, 0);
    return shares.map((share, s) => (zeroed && !allowed[s] ? 0 : share / total));
  }

  function build() {
    const mask = WORDS.map((_, t) => WORDS.map((_, s) => MASKS.both(t, s)));
    const boxes = mask.map((row, t) => row.map((_, s) => html("input", {
      type: "checkbox", "aria-label": `${WORDS[t]} may attend to ${WORDS[s]}`,
      change: ({ target }) => { mask[t][s] = target.checked; update(); },
    })));
    const set = (choice) => { mask.forEach((row, t) => row.forEach((_, s) => (row[s] = MASKS[choice](t, s)))); update(); };
    const buttons = Object.keys(MASKS).map((name) => html("button", { type: "button", class: "live-button", click: () => set(name) }, name));
    const way = html("select", { change: update }, ...Object.keys(WAYS).map((name) => html("option", { selected: name === "this book's" }, name)));
    const map = svg("svg", { class: "live-bars live-masked", viewBox: "0 0 480 258", role: "img" });
    const said = html("output", { class: "live-said" });
    const head = html("tr", {}, html("td", {}), ...WORDS.map((word) => html("th", { scope: "col" }, word)));
    const table = html("table", { class: "live-table" }, html("thead", {}, head),
      html("tbody", {}, ...WORDS.map((word, t) => html("tr", {}, html("th", { scope: "row" }, word), ...boxes[t].map((box) => html("td", {}, box))))));

    function verdict(weights) {
      const empty = WORDS.filter((_, t) => !mask[t].includes(true));
      const ahead = WORDS.findIndex((_, t) => mask[t].some((allowed, s) => allowed && s > t && WORDS[s] !== "pad"));
      const made = { "−∞": "its weights are 0/0, not a number", "−10⁹": "it attends to everything alike", "this book's": "its weights are all 0" };
      if (empty.length) return `${empty.join(", ")} may attend to nothing: ${made[way.value]}.`;
      if (ahead >= 0) return `${WORDS[ahead]} sees what it is to predict.`;
      return weights.every((row) => row[4] === 0) ? "Nobody sees the future, and nobody sees the padding." : "Nobody sees the future, but the padding gets weight.";
    }

    function update() {
      const weights = SCORES.map((row, t) => weights_of(row, mask[t], WAYS[way.value]));
      boxes.forEach((row, t) => row.forEach((box, s) => (box.checked = mask[t][s])));
      const cells = weights.flatMap((row, t) => row.map((weight, s) => {
        const [x, y] = [70 + 80 * s, 34 + 44 * t];
        const box = svg("g", { class: "live-box of-attention" }, svg("rect", { x, y, width: 76, height: 40, rx: 4 }),
          svg("text", { x: x + 38, y: y + 25, "text-anchor": "middle" }, Number.isNaN(weight) ? "NaN" : weight ? percent(weight) : "0"));
        box.style.setProperty("--weight", 0.6 * (weight || 0)); // so that its number can be read
        return box;
      }));
      const across = WORDS.map((word, s) => svg("text", { x: 108 + 80 * s, y: 22, "text-anchor": "middle" }, word));
      const down = WORDS.map((word, t) => svg("text", { x: 60, y: 59 + 44 * t, "text-anchor": "end" }, word));
      const sentence = verdict(weights);
      map.setAttribute("aria-label", `The weights of each word, a row for each. ${sentence}`);
      map.replaceChildren(...across, ...down, ...cells);
      said.replaceChildren(sentence);
    }

    update();
    return html("div", { class: "live-panel live-masks" },
      html("div", { class: "live-row" }, "Mask ", ...buttons, html("label", {}, " forbidden scores become ", way)),
      html("div", { class: "live-halves" }, html("div", {}, html("p", { class: "live-label" }, "Who (row) may attend to whom (column)"), table), map), said);
  }

  live.mount("masks", build);
}
