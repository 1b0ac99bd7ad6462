// One run of the Transformer that learns, for Chapters 7 and 9: its loss, beside that of the run before, and six answers.
"use strict";
{
  const { html, slider, percent, scientific } = live;
  const MODEL = { d_model: 32, n_heads: 2, n_layers: 1, dropout: 0, smoothing: 0, norm_first: false, parts: {}, seed: 0 };
  const EVERY = 10;

  // `settings` are a run's task, digits, rate and warm-up; `choose` says whether a reader sets the last two.
  function build(settings, updates, choose) {
    const rates = [3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1];
    const peak = slider("Highest rate", rates, settings.peak, (rate) => scientific(rate, 0), () => {});
    const warmup = slider("Updates of warm-up", [1, 10, 30, 100, 200], settings.warmup, String, () => {});
    const go = html("button", { type: "button", class: "live-button live-go", click: () => (worker ? stop() : run()) }, "Run");
    const plot = new live.Plot();
    const answers = html("div", { class: "live-samples" });
    const said = html("output", { class: "live-heard" });
    let worker, losses = [], before = [], step = 0;

    function run() {
      [before, losses, step] = [losses, [], 0];
      worker = live.start_worker();
      worker.onmessage = ({ data }) => take(data);
      worker.postMessage({ settings: [{ ...MODEL, ...settings, peak: peak.value, warmup: warmup.value }] });
      worker.postMessage({ going: true });
      go.replaceChildren("Stop");
      draw("The run has begun.");
    }

    function stop() {
      worker.terminate();
      worker = undefined;
      go.replaceChildren("Run");
    }

    function take({ reports: [{ step: now, losses: more, share, total, right, answers: made, unseen }], going }) {
      losses.push(...more);
      step = now;
      const recent = losses.slice(-EVERY).reduce((sum, [, loss]) => sum + loss, 0) / Math.min(EVERY, losses.length);
      draw(step ? `After ${step} updates the loss is ${recent.toFixed(2)}, and ${percent(share)} of ${total} unseen sequences are right.` : "The run has begun.");
      answers.replaceChildren(...unseen.map(([src, wanted], i) => row_of(src, made[i], wanted, right[i])));
      if (step >= updates || (step && !going)) stop();
    }

    const tokens = (ids, wanted = ids) => html("span", { class: "live-tokens" }, ...ids.map((id, i) =>
      html("span", { class: id === wanted[i] ? "live-token" : "live-token live-wrong" }, id === 10 ? "X" : id < 10 ? String(id) : "·")));
    const row_of = (src, made, wanted, right) => html("div", { class: "live-sample" }, tokens(src), "→", tokens(made, wanted),
      html("span", {}, right ? "✓" : "✗", html("span", { class: "live-spoken" }, right ? "right" : "wrong")));

    // Each point is the mean of ten updates.
    const smooth = (points) => points.filter((_, i) => i % EVERY === EVERY - 1).map(([at], i) =>
      [at, points.slice(EVERY * i, EVERY * (i + 1)).reduce((sum, [, loss]) => sum + loss, 0) / EVERY]);

    function draw(sentence) {
      plot.axes({ from: 0, to: updates, label: "updates" }, { from: 0, to: 4, label: "loss, nats a token" }, sentence);
      plot.curve(smooth(before), "live-other");
      plot.curve(smooth(losses), "live-main");
      said.replaceChildren(sentence);
    }

    draw("Nothing is trained yet; press Run, and a new model learns.");
    answers.replaceChildren("Answers to sequences that are never trained on appear here.");
    return html("div", { class: "live-panel live-trial" },
      html("div", { class: "live-row" }, go, ...(choose ? [peak.row, warmup.row] : [])),
      html("div", { class: "live-halves" }, plot.svg, answers), said);
  }

  live.trial = build;
}
