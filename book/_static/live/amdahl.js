// Amdahl's law, for Chapter 10: a kind of operation becomes so many times as fast, and the recorded step follows.
"use strict";
{
  const { html, svg, slider, percent, range } = live;
  const FACTORS = [...range(1, 4, 0.25), 5, 6, 8, 10, 20, 50, 100];
  const times = (value) => `${Number(value.toPrecision(3))} ×`;

  function build() {
    const shares = live.data.amdahl;
    const kinds = Object.keys(shares).sort((a, b) => shares[b] - shares[a]);
    const part = html("select", { change: update }, ...kinds.map((kind) => html("option", {}, kind)));
    const factor = slider("Factor r", FACTORS, 2, times, update);
    const bars = svg("svg", { class: "live-bars live-steps", viewBox: "0 0 480 96", role: "img" });
    const plot = new live.Plot();
    const said = html("output", { class: "live-said" });

    // A step as pieces side by side, the chosen one in the figure's color.
    function step(name, y, scaled) {
      let left = 66;
      const pieces = kinds.map((kind) => {
        const width = 400 * shares[kind] * (kind === part.value ? scaled : 1);
        const piece = svg("rect", { class: kind === part.value ? "live-main" : "live-other", x: left.toFixed(1), y, width: width.toFixed(1), height: 30 });
        left += width;
        return piece;
      });
      return [svg("text", { x: 58, y: y + 20, "text-anchor": "end" }, name), ...pieces];
    }

    function update() {
      const [s, r] = [shares[part.value], factor.value];
      const gain = (faster) => 1 / (1 - s + s / faster);
      const [left, limit] = [1 / gain(r), 1 / (1 - s)];
      bars.setAttribute("aria-label", `Before, ${part.value} take ${percent(s)} of the step. After, the step takes ${percent(left)} of its time.`);
      bars.replaceChildren(...step("before", 8, 1), ...step("after", 54, 1 / r));
      const sentence = `The share s of ${part.value} is ${percent(s)}. ${times(r)} as fast, it makes the whole step ${gain(r).toFixed(2)} × as fast. Without it, the step would be ${limit.toFixed(2)} × as fast.`;
      plot.axes({ from: 1, to: 100, log: true, label: "r, how many times as fast the part is" },
        { from: 1, to: Math.max(1.2, 1.1 * limit), label: "gain of the step" }, sentence);
      plot.line([[1, limit], [100, limit]], "live-other");
      plot.curve(range(0, 2, 0.02).map((power) => [10 ** power, gain(10 ** power)]), "live-main");
      plot.dot([r, gain(r)], "live-main");
      said.replaceChildren(sentence);
    }

    update();
    return html("div", { class: "live-panel live-amdahl" }, html("div", { class: "live-halves" },
      html("div", { class: "live-stack" }, html("label", { class: "live-row" }, "Operations ", part), factor.row, bars), plot.svg), said);
  }

  live.mount("amdahl", build);
}
