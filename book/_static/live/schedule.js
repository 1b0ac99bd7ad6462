// The learning rate over a run, for Chapter 7: warm-up, height and cool-down.
"use strict";
{
  const { html, scientific, slider, range } = live;

  const noam_rate = (step, d_model, warmup_steps, factor = 1) =>
    factor * d_model ** -0.5 * Math.min(step ** -0.5, step * warmup_steps ** -1.5);

  const cooldown = (step, steps, fraction) => (fraction ? Math.min(1, (steps - step + 1) / (fraction * steps)) : 1);

  const words = (number) => number.toLocaleString("en");

  function build() {
    const lengths = [1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000];
    const updates = (value) => `${words(value)} updates`;
    const share = (value) => `${Math.round(100 * value)}%`;
    const warmup = slider("Warm-up", [...range(100, 900, 100), ...range(1000, 10000, 500)], 4000, updates, update);
    const width = slider("d_model", [64, 128, 256, 512, 1024], 512, String, update);
    const peak = slider("Peak", [0, ...range(0.0001, 0.005, 0.0001)], 0, (value) => (value ? scientific(value, 1) : "by d_model"), update);
    const tail = slider("Cool-down", range(0, 1, 0.05), 0.2, share, update);
    const length = slider("Run", lengths, 50000, updates, update);
    const place = slider("Look at", range(0, 1, 0.01), 0.4, share, update);
    const plot = new live.Plot();
    const said = html("output", { class: "live-said" });

    function update() {
      const [steps, d_model, warmup_steps] = [length.value, width.value, warmup.value];
      const factor = peak.value * Math.sqrt(d_model * warmup_steps) || 1; // as the recipes' Schedule has it
      const bare = (step) => noam_rate(step, d_model, warmup_steps, factor);
      const rate = (step) => bare(step) * cooldown(step, steps, tail.value);
      const step = Math.max(1, Math.round(place.value * steps));
      const sentence = `Update ${words(step)} of ${words(steps)} has the rate ${scientific(rate(step), 2)}. The peak without cool-down is ${scientific(bare(warmup_steps), 2)}.`;

      const thousands = (value) => (steps < 5000 || !value ? words(value) : `${words(value / 1000)}k`);
      plot.axes({ from: 0, to: steps, label: "update", show: thousands },
        { from: 0, to: 1.05 * bare(warmup_steps), label: "rate · 10³", show: (value) => words(1000 * value) }, sentence);
      const points = [...range(1, 400).map((i) => Math.max(1, Math.round((i / 400) * steps))), 1, Math.min(warmup_steps, steps)].sort((a, b) => a - b);
      plot.curve(points.map((each) => [each, bare(each)]), "live-other");
      plot.curve(points.map((each) => [each, rate(each)]), "live-main");
      plot.dot([step, rate(step)], "live-main");
      said.replaceChildren(sentence);
    }

    update();
    return html("div", { class: "live-panel live-schedule" }, html("div", { class: "live-halves" },
      html("div", { class: "live-stack" }, ...[warmup, width, peak, tail, length, place].map(({ row }) => row)), plot.svg), said);
  }

  live.mount("schedule", build);
}
