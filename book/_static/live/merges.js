// Byte pairs, for Chapter 12: merges learned from the reader's own text, and what they make of its words.
"use strict";
{
  const { html, svg, slider, range } = live;
  const SPACE = "▁"; // stands for the space in front of a word
  const FIRST = "come come come come come comes comes comemos comemos fala fala fala fala falas falamos falamos";
  const SHOWN = 8; // different words, the most frequent ones

  // Joins a pair of neighbors wherever it stands.
  function merge(pieces, [left, right]) {
    const merged = [];
    for (const piece of pieces) {
      if (merged.at(-1) === left && piece === right) merged[merged.length - 1] += piece;
      else merged.push(piece);
    }
    return merged;
  }

  // The words of a text, cut into letters, and then after each merge; a pair that occurs once is not merged.
  function learn(text) {
    const counts = new Map();
    for (const word of text.normalize("NFC").split(/\s+/).filter(Boolean)) counts.set(word, (counts.get(word) ?? 0) + 1);
    let words = [...counts].sort((a, b) => b[1] - a[1]).map(([word, count]) => ({ pieces: [...(SPACE + word)], count }));
    const ages = new Map([...new Set(words.flatMap(({ pieces }) => pieces))].sort().map((piece, age) => [piece, age]));
    const steps = [{ words }];
    for (;;) {
      const pairs = new Map();
      for (const { pieces, count } of words) {
        for (let i = 1; i < pieces.length; i++) {
          const key = `${pieces[i - 1]} ${pieces[i]}`;
          pairs.set(key, (pairs.get(key) ?? 0) + count);
        }
      }
      const most = Math.max(0, ...pairs.values());
      if (most < 2) return steps;
      const tied = [...pairs.keys()].filter((key) => pairs.get(key) === most).map((key) => key.split(" "));
      const [pair] = tied.sort((a, b) => ages.get(a[0]) - ages.get(b[0]) || ages.get(a[1]) - ages.get(b[1]));
      words = words.map(({ pieces, count }) => ({ pieces: merge(pieces, pair), count }));
      if (!ages.has(pair.join(""))) ages.set(pair.join(""), ages.size);
      steps.push({ words, pair, count: most });
    }
  }

  function build() {
    const text = live.text_field({ class: "live-own", "aria-label": "Text to learn from" }, 300, () => start());
    const field = text.input;
    const place = html("div", { class: "live-sliders live-stack" });
    const picture = svg("svg", { class: "live-merges", role: "img" });
    const said = html("output", { class: "live-said" });
    let steps, done;

    function start(first) {
      steps = learn(text.fits ? field.value : "");
      const last = steps.length - 1;
      done = slider("Merges", range(0, last), first ?? last, (number) => `${number} of ${last}`, update);
      done.input.disabled = !last;
      place.replaceChildren(done.row);
      update();
    }

    function update() {
      const { words, pair, count } = steps[done.value];
      const shown = words.slice(0, SHOWN);
      const step = Math.min(17, 410 / Math.max(1, ...shown.map(({ pieces }) => pieces.join("").length)));
      picture.setAttribute("viewBox", `0 0 480 ${Math.max(1, shown.length) * 32}`);
      picture.setAttribute("aria-label", `The words and their pieces: ${shown.map(({ pieces }) => pieces.join(" ")).join(", ")}.`);
      picture.replaceChildren(...shown.flatMap(({ pieces, count }, row) => {
        let from = 52;
        const boxes = pieces.map((piece) => {
          const [x, width] = [from, step * [...piece].length];
          from += width;
          const state = pair && piece === pair.join("") ? "live-piece live-new" : "live-piece";
          return svg("g", { class: state },
            svg("rect", { x: (x + 1.5).toFixed(1), y: 32 * row + 3, width: Math.max(1, width - 3).toFixed(1), height: 26, rx: 4 }),
            svg("text", { x: (x + width / 2).toFixed(1), y: 32 * row + 21, "font-size": Math.min(15, 1.5 * step).toFixed(1) }, piece));
        });
        return [svg("text", { class: "live-times", x: 42, y: 32 * row + 21 }, `${count} ×`), ...boxes];
      }));

      const tokens = words.reduce((sum, { pieces, count }) => sum + pieces.length * count, 0);
      const now = `The text is ${tokens} pieces long.`;
      said.replaceChildren(pair ? `Merge ${done.value}: ${pair[0]} + ${pair[1]} → ${pair.join("")}, ${count} times. ${now}` : `Letters only. ${now}`);
    }

    field.value = FIRST;
    start(4);
    return html("div", { class: "live-panel" }, field, text.note,
      html("div", { class: "live-pieces" }, html("div", {}, place, said), picture));
  }

  live.mount("merges", build);
}
