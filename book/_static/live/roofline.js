// The roofline, for Chapter 10: a part of the model and a number of rows, and which of two limits it meets.
"use strict";
{
  const { html, slider, number_field, range, scientific } = live;
  const [D_MODEL, D_FF, VOCABULARY, LENGTH] = [256, 1024, 8000, 32]; // of the record's model
  const BYTES = 4;

  const dense = (d, k) => (n) => [2 * n * d * k, BYTES * (n * d + d * k + n * k)];

  // Operations and bytes by the number of rows.
  const PARTS = {
    "projection, 256 → 256": dense(D_MODEL, D_MODEL),
    "network's first layer, 256 → 1024": dense(D_MODEL, D_FF),
    "network's second layer, 1024 → 256": dense(D_FF, D_MODEL),
    "logits, 256 → 8000": dense(D_MODEL, VOCABULARY),
    "attention, each row to 32 keys of its own sentence": (n) => [4 * D_MODEL * LENGTH * n, BYTES * (2 * n + 2 * LENGTH * Math.ceil(n / LENGTH)) * D_MODEL],
    "addition": (n) => [n * D_MODEL, 3 * BYTES * n * D_MODEL],
    "layer normalization": (n) => [7 * n * D_MODEL, 2 * BYTES * n * D_MODEL],
  };

  const UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [0, "ns"]];
  const short = (number) => Number(number.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 20 });
  const duration = (seconds) => {
    const [least, unit] = UNITS.find(([least]) => seconds >= least);
    return `${short(seconds / (least || 1e-9))} ${unit}`;
  };

  function build() {
    const part = html("select", { change: update }, ...Object.keys(PARTS).map((name, i) => html("option", { selected: i === 1 }, name)));
    const rows = slider("Rows n", range(0, 13).map((power) => 2 ** power), 64, (value) => value.toLocaleString("en"), update);
    const peak = number_field("GFLOP/s at the peak", 240, [0.1, 1e6], "any", update);
    const bandwidth = number_field("GB/s from memory", 39, [0.1, 1e5], "any", update);
    const plot = new live.Plot();
    const said = html("output", { class: "live-said" });

    function update() {
      const [P, beta] = [peak.value, bandwidth.value];
      if (!P || !beta) {
        said.replaceChildren();
        plot.clear("Without two numbers within their bounds there is no roof.");
        return;
      }
      const [work, traffic] = PARTS[part.value](rows.value);
      const intensity = work / traffic;
      const [computing, moving] = [work / (1e9 * P), traffic / (1e9 * beta)];
      const reached = Math.min(P, intensity * beta);
      const bound = computing > moving ? "arithmetic" : "memory";
      const sentence = `${short(work)} operations on ${short(traffic)} bytes: ${short(intensity)} operations per byte. `
        + `Computing takes ${duration(computing)}, moving ${duration(moving)}. Bound by ${bound}: at least ${duration(Math.max(computing, moving))}, `
        + `at ${short(reached)} GFLOP/s. The ridge is at ${short(P / beta)}.`;

      const power = (value) => (value < 0.01 || value >= 1e5 ? scientific(value, 0).replace("1 · ", "") : Number(value.toPrecision(1)).toLocaleString("en"));
      const [from, to] = [0.05, Math.max(1000, (5 * P) / beta)];
      plot.axes({ from, to, log: true, label: "operations per byte", show: power },
        { from: from * Math.min(beta, P), to: 2 * P, log: true, label: "GFLOP/s", show: power }, sentence);
      const roof = [[from, Math.min(P, from * beta)], [Math.min(to, Math.max(from, P / beta)), Math.min(P, to * beta)], [to, Math.min(P, to * beta)]];
      plot.curve(roof, "live-other");
      plot.curve(range(0, 13, 0.25).map((i) => PARTS[part.value](2 ** i)).map(([w, q]) => [w / q, Math.min(P, (w / q) * beta)]), "live-main");
      plot.dot([intensity, reached], "live-main");
      said.replaceChildren(sentence);
    }

    const field_row = ({ input, note }, words) => html("div", { class: "live-row" }, html("label", {}, input, words), note);
    update();
    return html("div", { class: "live-panel live-roofline" }, html("div", { class: "live-halves" },
      html("div", { class: "live-stack" }, html("label", { class: "live-row" }, "Part ", part), rows.row,
        field_row(peak, " GFLOP/s at the peak"), field_row(bandwidth, " GB/s from memory"), said), plot.svg));
  }

  live.mount("roofline", build);
}
