// Label smoothing, for Chapter 6: the target, the model's distribution, and the loss by the logit of the right token.
"use strict";
{
  const { html, svg, slider, range, percent } = live;

  // The right token's share of the target, and that of each other one.
  const target = (smoothing, V) => [1 - smoothing + smoothing / V, smoothing / V];

  // Their log-probabilities where the right token has the logit z, and all others 0.
  function log_probabilities(z, V) {
    const total = z + Math.log1p((V - 1) * Math.exp(-z));
    return [z - total, -total];
  }

  function loss(z, smoothing, V) {
    const [[q, rest], [log_p, log_rest]] = [target(smoothing, V), log_probabilities(z, V)];
    return -q * log_p - (V - 1) * rest * log_rest;
  }

  function build() {
    const epsilon = slider("ε", range(0, 0.5, 0.01), 0.1, (value) => value.toFixed(2), update);
    const size = slider("Vocabulary V", [2, 4, 10, 14, 50, 100, 1000, 1200, 8000, 37000], 1000, (value) => value.toLocaleString("en"), update);
    const logit = slider("Logit z", range(0, 20, 0.1), 5, (value) => value.toFixed(1), update);
    const to_minimum = html("button", { type: "button", class: "live-button", click: go }, "Go to the minimum");
    const bars = svg("svg", { class: "live-bars", viewBox: "0 0 480 142", role: "img" });
    const plot = new live.Plot();
    const said = html("output", { class: "live-said" });

    const minimum = () => { const [q, rest] = target(epsilon.value, size.value); return Math.log(q / rest); }; // Infinity for ε = 0

    function go() {
      logit.input.value = Math.min(200, Math.round(10 * minimum()));
      logit.tell();
      update();
    }

    function update() {
      const [smoothing, V, z] = [epsilon.value, size.value, logit.value];
      const [q, rest] = target(smoothing, V);
      const [p, p_rest] = log_probabilities(z, V).map(Math.exp);
      const shares = [["right token, target", q], ["right token, model", p], ["all others, target", (V - 1) * rest], ["all others, model", (V - 1) * p_rest]];
      bars.setAttribute("aria-label", shares.map(([name, share]) => `${name}: ${percent(share)}`).join(", "));
      bars.replaceChildren(...shares.flatMap(([name, share], i) => {
        const y = 4 + 33 * i + 6 * (i > 1);
        return [svg("text", { x: 138, y: y + 17, "text-anchor": "end" }, name),
          svg("rect", { class: i % 2 ? "live-main" : "live-other", x: 146, y, width: (270 * share).toFixed(1), height: 24 }),
          svg("text", { x: (152 + 270 * share).toFixed(1), y: y + 17 }, percent(share))];
      }));

      const [now, best] = [loss(z, smoothing, V), minimum()];
      const where = smoothing ? `It is least at z = ${best.toFixed(2)}, where ${loss(best, smoothing, V).toFixed(3)} is left.` : "Without smoothing it falls for ever.";
      const sentence = `At z = ${z.toFixed(1)} the loss is ${now.toFixed(3)}. ${where}`;
      plot.axes({ from: 0, to: 20, label: "logit z of the right token, the others 0" }, { from: 0, to: Math.ceil(Math.log(V) + 0.5), label: "loss, in nats" }, sentence);
      const points = range(0, 20, 0.1);
      plot.curve(points.map((each) => [each, loss(each, 0, V)]), "live-other");
      plot.curve(points.map((each) => [each, loss(each, smoothing, V)]), "live-main");
      if (best <= 20) plot.dot([best, loss(best, smoothing, V)], "live-least");
      plot.dot([z, now], "live-main");
      said.replaceChildren(sentence);
      to_minimum.disabled = !smoothing;
    }

    update();
    return html("div", { class: "live-panel live-smoothing" },
      html("div", { class: "live-sliders live-stack" }, epsilon.row, size.row, logit.row),
      html("div", { class: "live-halves" }, bars, plot.svg), said, html("div", { class: "live-row" }, to_minimum));
  }

  live.mount("smoothing", build);
}
