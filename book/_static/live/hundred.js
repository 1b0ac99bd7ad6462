// A hundred sentences and what a translator made of them, for Chapter 13: where it fails, by the kind of sentence.
"use strict";
{
  const { html, svg, slider, range } = live;
  const STEP = 110; // milliseconds from word to word
  const FIRST = "Ontem choveu";

  function build() {
    const found = live.data.hundred.map(([kind, source, translation, target, score]) => ({ kind, source, translation, target, score }));
    const mean_of = (kind) => { const own = found.filter((each) => each.kind === kind); return own.reduce((sum, { score }) => sum + score, 0) / own.length; };
    const kinds = [...new Set(found.map(({ kind }) => kind))].sort((a, b) => mean_of(b) - mean_of(a));
    const sentences = kinds.flatMap((kind) => found.filter((each) => each.kind === kind).sort((a, b) => a.score - b.score));
    const first = sentences.findIndex(({ source }) => source.startsWith(FIRST));
    const moving = () => !matchMedia("(prefers-reduced-motion: reduce)").matches;
    let timer;

    const place = slider("Sentence", range(0, sentences.length - 1), first, (i) => `${i + 1}, ${sentences[i].kind}`, show);
    const dots = svg("svg", { class: "live-bars live-hundred", viewBox: `0 0 480 ${26 * kinds.length + 24}`, role: "img" });
    const [source, made, wanted] = ["pt", "en", "en"].map((lang) => html("p", { lang }));
    const said = html("output", { class: "live-said" });

    const at = (score) => (150 + 3 * score).toFixed(1);

    function show() {
      const chosen = sentences[place.value];
      clearTimeout(timer);
      source.replaceChildren(chosen.source);
      wanted.replaceChildren(chosen.target);
      write(chosen.translation.split(" "), moving() ? 1 : Infinity);
      const rows = kinds.flatMap((kind, k) => {
        const y = 15 + 26 * k;
        return [svg("text", { x: 138, y: y + 5, "text-anchor": "end" }, kind), svg("line", { class: "live-faint", x1: 150, y1: y, x2: 450, y2: y })];
      });
      const points = sentences.map((each, i) => svg("circle", { class: each === chosen ? "live-main" : "live-other", cx: at(each.score), cy: 15 + 26 * kinds.indexOf(each.kind), r: each === chosen ? 8 : 5, click: () => choose(i) }));
      points.push(points[place.value]); // above the others
      const foot = range(0, 100, 50).map((score) => svg("text", { x: at(score), y: 26 * kinds.length + 20, "text-anchor": "middle" }, score === 50 ? "chrF2 50" : String(score)));
      dots.replaceChildren(...rows, ...foot, ...points);
      const told = `${chosen.kind}: chrF2 ${chosen.score.toFixed(0)}, where the mean of its kind is ${mean_of(chosen.kind).toFixed(0)}.`;
      dots.setAttribute("aria-label", `A dot for each sentence, by its kind and chrF2. The chosen one is of the kind ${told}`);
      said.replaceChildren(told[0].toUpperCase() + told.slice(1));
    }

    function choose(i) {
      place.input.value = i;
      place.tell();
      show();
    }

    // Word after word, as it was written.
    function write(words, count) {
      made.replaceChildren(words.slice(0, count).join(" "));
      if (count < words.length) timer = setTimeout(() => write(words, count + 1), STEP);
    }

    show();
    const texts = [["Portuguese", source], ["Translator", made], ["Person", wanted]].flatMap(([name, text]) => [html("span", { class: "live-label" }, name), text]);
    return html("div", { class: "live-panel" }, html("div", { class: "live-halves" }, dots, html("div", {}, place.row, html("div", { class: "live-heard" }, ...texts), said)));
  }

  live.mount("hundred", build);
}
