// What a plus sign does for a gradient, for Chapter 4: a stack of small networks, each with its sum or without.
"use strict";
{
  const { html, svg, range, scientific } = live;
  const DEPTH = 10, EACH = 43;
  const LOWEST = -8, HIGHEST = 1; // powers of ten that are drawn

  const length_of = (x) => Math.sqrt(x.reduce((sum, value) => sum + value * value, 0));
  const number = (value) => (value < 0.01 ? scientific(value, 0) : value.toFixed(2));

  // What is left of a gradient of length 1 before each network, from the bottom up.
  function left_of(sums, seed) {
    const { stream, given } = live.depth.stack("networks", sums.map((sum) => (sum ? "sum" : "chain")), DEPTH, seed);
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

  live.mount("plus", build);
}
