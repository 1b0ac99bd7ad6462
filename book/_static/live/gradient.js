// The loss of one token and its gradient, for Chapter 6: probabilities minus target, and steps against it.
"use strict";
{
  const { html, svg, slider, range, percent, signed } = live;
  const FIRST = { this: 0.35, is: 1.69, a: 4.08, problem: 5.56 }; // Chapter 5's scores after "this is a"
  const WORDS = Object.keys(FIRST);
  const LOGITS = range(-8, 8, 0.01);

  function softmax(logits) {
    const shares = logits.map((z) => Math.exp(z - Math.max(...logits)));
    const total = shares.reduce((sum, share) => sum + share, 0);
    return shares.map((share) => share / total);
  }

  function build() {
    const sliders = WORDS.map((word) => slider(word, LOGITS, FIRST[word], signed, update));
    const right = html("select", { change: update }, ...WORDS.map((word) => html("option", { selected: word === "problem" }, word)));
    const bars = svg("svg", { class: "live-bars", viewBox: "0 0 480 172", role: "img" });
    const said = html("output", { class: "live-said" });
    const button = (words, click) => html("button", { type: "button", class: "live-button", click }, words);

    function move(logit_of) {
      WORDS.forEach((word, i) => {
        const place = Math.round((logit_of(word, i) - LOGITS[0]) * 100);
        sliders[i].input.value = Math.min(LOGITS.length - 1, Math.max(0, place));
        sliders[i].tell();
      });
      update();
    }

    const slopes = () => softmax(sliders.map(({ value }) => value)).map((p, i) => p - (WORDS[i] === right.value));

    function step() {
      const gradient = slopes();
      move((_, i) => sliders[i].value - gradient[i]);
    }

    function update() {
      const p = softmax(sliders.map(({ value }) => value));
      const gradient = slopes();
      const sure = p[WORDS.indexOf(right.value)];
      const rows = WORDS.flatMap((word, i) => {
        const y = 34 + 34 * i, wide = 150 * p[i], [from, to] = [380, 380 + 80 * gradient[i]];
        return [svg("text", { x: 62, y: y + 17, "text-anchor": "end" }, word),
          svg("rect", { class: word === right.value ? "live-main" : "live-other", x: 70, y, width: wide.toFixed(1), height: 24 }),
          svg("text", { x: (76 + wide).toFixed(1), y: y + 17 }, percent(p[i])),
          svg("rect", { class: word === right.value ? "live-main" : "live-other", x: Math.min(from, to).toFixed(1), y, width: Math.abs(to - from).toFixed(1), height: 24 }),
          svg("text", { x: (gradient[i] < 0 ? 386 : 374).toFixed(1), y: y + 17, "text-anchor": gradient[i] < 0 ? "start" : "end" }, signed(gradient[i]))];
      });
      const heads = [["probability", 70, "start"], ["gradient", 380, "middle"]].map(([text, x, anchor]) => svg("text", { x, y: 18, "text-anchor": anchor }, text));
      const sentence = `The right word is ${right.value}. The model gives it ${percent(sure)}, so the loss is ${(-Math.log(sure)).toFixed(2)} nats.`;
      bars.setAttribute("aria-label", WORDS.map((word, i) => `${word}: probability ${percent(p[i])}, gradient ${signed(gradient[i])}`).join(". "));
      bars.replaceChildren(...heads, ...rows);
      said.replaceChildren(sentence);
    }

    update();
    const buttons = html("div", { class: "live-row" }, html("label", {}, "The right word is ", right), button("One step", step), button("Start over", () => move((word) => FIRST[word])));
    return html("div", { class: "live-panel" }, buttons,
      html("div", { class: "live-halves" }, html("div", { class: "live-stack" }, ...sliders.map(({ row }) => row)), bars), said);
  }

  live.mount("gradient", build);
}
