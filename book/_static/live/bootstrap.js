// The bootstrap, for Chapter 13: draws of its hundred sentences, and where 95% of their scores lie.
"use strict";
{
  const { html, slider, range } = live;
  const DRAWS = 1000;
  const SIZES = [10, 20, 50, 100, 200, 500, 1000, 1803];

  // BLEU of summed counts: four of n-grams found, four of n-grams written, and both lengths.
  function bleu(sums) {
    const precision = range(0, 3).reduce((product, n) => product * (sums[n] / sums[4 + n]), 1) ** 0.25;
    return 100 * Math.min(1, Math.exp(1 - sums[9] / sums[8])) * precision;
  }

  function draw(rows, size, random) {
    const sums = new Float64Array(10);
    for (let i = 0; i < size; i++) rows[Math.floor(random() * rows.length)].forEach((count, k) => (sums[k] += count));
    return bleu(sums);
  }

  function build() {
    const rows = live.data.bootstrap;
    let seed = 1;
    const size = slider("Sentences", SIZES, 100, (value) => value.toLocaleString("en"), update);
    const again = html("button", { type: "button", class: "live-button", click: () => { seed += 1; update(); } }, "Draw again");
    const plot = new live.Plot();
    const said = html("output", { class: "live-said" });
    const whole = bleu(rows[0].map((_, k) => rows.reduce((sum, row) => sum + row[k], 0)));

    function update() {
      const random = live.learning().generator(seed);
      const scores = Float64Array.from({ length: DRAWS }, () => draw(rows, size.value, random)).sort();
      const [low, high] = [scores[DRAWS * 0.025], scores[DRAWS * 0.975 - 1]];
      const sentence = `1,000 times ${size.value.toLocaleString("en")} sentences: 95% of the scores lie between ${low.toFixed(1)} and ${high.toFixed(1)}, ${(high - low).toFixed(1)} points apart.`;
      const counts = range(0, 60).map((left) => scores.filter((score) => score >= left && score < left + 1).length);
      plot.axes({ from: 0, to: 60, label: "BLEU-tok of a draw" }, { from: 0, to: 1.1 * Math.max(...counts), label: "draws" }, sentence);
      plot.line([[whole, 0], [whole, 1000]], "live-other");
      plot.curve(counts.flatMap((count, left) => [[left, count], [left + 1, count]]), "live-main");
      for (const end of [low, high]) plot.dot([end, 0], "live-main");
      said.replaceChildren(sentence);
    }

    update();
    return html("div", { class: "live-panel live-bootstrap" }, html("div", { class: "live-halves" },
      html("div", { class: "live-stack" }, size.row, html("div", { class: "live-row" }, again), said), plot.svg));
  }

  live.mount("bootstrap", build);
}
