// What each device keeps of a training run, and what it sends, under data parallelism and the stages of ZeRO.
"use strict";
{
  const { html, svg, slider, range } = live;
  const SIZES = [0.063, 0.4, 1, 3, 7, 13, 34, 70, 180, 405, 1000]; // billions of parameters
  const PARTS = { weights: 2, gradients: 2, Adam: 12 }; // bytes of each parameter, in half precision
  const STAGES = {
    "data parallelism": [], "ZeRO 1": ["Adam"], "ZeRO 2": ["Adam", "gradients"], "ZeRO 3 (FSDP)": ["Adam", "gradients", "weights"],
  };
  const DEVICE = 80; // GB
  const gigabytes = (number) => `${number.toLocaleString("en", { maximumSignificantDigits: 3 })} GB`;

  function build() {
    const billions = slider("Parameters", SIZES, 70, (value) => `${value} billion`, update);
    const devices = slider("Devices", range(0, 12).map((power) => 2 ** power), 16, String, update);
    const chosen = html("select", { change: update }, ...Object.keys(STAGES).map((name) => html("option", { selected: name === "ZeRO 2" }, name)));
    const bars = svg("svg", { class: "live-bars", viewBox: "0 0 480 142", role: "img" });
    const said = html("output", { class: "live-said" });

    // Bytes on one device, in GB.
    const kept = (stage) => Object.entries(PARTS).map(([part, size]) => (size * billions.value) / (STAGES[stage].includes(part) ? devices.value : 1));
    const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

    function update() {
      const unit = 330 / Math.max(1.1 * DEVICE, sum(kept("data parallelism")));
      const rows = Object.keys(STAGES).flatMap((stage, i) => {
        const [numbers, y] = [kept(stage), 6 + 34 * i];
        const edges = numbers.map((_, part) => 132 + unit * sum(numbers.slice(0, part)));
        return [svg("text", { x: 124, y: y + 17, "text-anchor": "end" }, stage),
          ...numbers.map((number, part) => svg("rect", { class: stage === chosen.value ? "live-main" : "live-other", "fill-opacity": [1, 0.7, 0.45][part], x: edges[part].toFixed(1), y, width: (unit * number).toFixed(1), height: 24 }))];
      });
      const [n, total] = [devices.value, sum(kept(chosen.value))];
      const sent = ((chosen.value === "ZeRO 3 (FSDP)" ? 3 : 2) * 2 * billions.value * (n - 1)) / n;
      const sentence = `With ${chosen.value} on ${n}, each device keeps ${gigabytes(total)}, which ${total <= DEVICE ? "fits" : "doesn't fit"}, and sends ${gigabytes(sent)} an update.`;
      const edge = (132 + unit * DEVICE).toFixed(1);
      bars.setAttribute("aria-label", sentence);
      bars.replaceChildren(...rows, svg("line", { class: "live-limit", x1: edge, y1: 0, x2: edge, y2: 142 }));
      said.replaceChildren(sentence);
    }

    update();
    return html("div", { class: "live-panel live-shards" }, html("div", { class: "live-halves" },
      html("div", { class: "live-stack" }, html("label", { class: "live-row" }, "Divide by ", chosen), billions.row, devices.row), bars), said);
  }

  live.mount("shards", build);
}
