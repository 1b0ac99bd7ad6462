// BLEU of a translation that one types, for Chapter 13: every n-gram of it and of the reference, and the score.
"use strict";
{
  const { html, svg, percent, slider, range } = live;
  const LONGEST = 12; // words

  // Sentences of small Portuguese, with their references and a first attempt.
  const SENTENCES = [
    ["a menina gosta do gato preto .", "the girl likes the black cat .", "the girl likes the cat ."],
    ["nós vamos comer a maçã pequena .", "we 're going to eat the small apple .", "we are going to eat the little apple ."],
    ["o médico não comprou a casa branca .", "the doctor did n't buy the white house .", "the doctor did n't buy the house white ."],
    ["ela vê o livro .", "she sees the book .", "the the the the ."],
  ];

  const ngrams = (words, n) => Array.from({ length: Math.max(0, words.length - n + 1) }, (_, i) => words.slice(i, i + n).join(" "));

  // Which of the n-grams count: each at most as often as the other side has it.
  function clipped(ours, theirs) {
    const left = new Map();
    for (const each of theirs) left.set(each, (left.get(each) ?? 0) + 1);
    return ours.map((each) => {
      const some = (left.get(each) ?? 0) > 0;
      if (some) left.set(each, left.get(each) - 1);
      return some;
    });
  }

  // Equation (13.1), and the score in which sacreBLEU has put 1/2, 1/4, … of an n-gram in place of each count of 0.
  function bleu(hypothesis, reference) {
    const [c, r] = [hypothesis.length, reference.length];
    const orders = [1, 2, 3, 4].map((n) => {
      const [ours, theirs] = [ngrams(hypothesis, n), ngrams(reference, n)];
      const counts = clipped(ours, theirs);
      return { ours, theirs, counts, found: counts.filter(Boolean).length };
    });
    const brevity = c ? Math.min(1, Math.exp(1 - r / c)) : 0;
    const score = (precisions) => 100 * brevity * precisions.reduce((product, p) => product * p, 1) ** (1 / 4);
    const share = (found, { ours }) => (ours.length ? found / ours.length : 0);
    let small = 1;
    const smoothed = orders.map((order) => share(order.found || (small /= 2), order));
    const precisions = orders.map((order) => share(order.found, order));
    const any = orders[0].found > 0; // without one right word the score is 0 in any case
    return { orders, precisions, brevity, c, r, score: score(precisions), smoothed: any ? score(smoothed) : 0 };
  }

  const WIDE = 64, HIGH = 20, LABEL = 72; // of a word, of a row, of what stands before it

  function build() {
    const chosen = html("select", { "aria-label": "Portuguese sentence", change: choose }, ...SENTENCES.map(([source], i) => html("option", { value: i }, source)));
    const field = html("input", {
      type: "text", class: "live-text", maxlength: 90, autocomplete: "off", autocapitalize: "off", spellcheck: "false",
      "aria-label": "Your translation", input: () => update(true),
    });
    const drawing = svg("svg", { class: "live-ngrams", role: "img" });
    const table = html("tbody"), total = html("p", { class: "live-bleu-total" });
    const said = html("output", { class: "live-said" });
    let words, reference, found, places = []; // each n-gram typed, as its length and its start
    const look = slider("Look at", range(0, 4 * LONGEST), 0, (place) => looked_at(place).words, () => update(false));

    function choose() {
      field.value = SENTENCES[chosen.value][2];
      update(true);
    }

    function looked_at(place = look.value) {
      const [n, i] = places[place] ?? [];
      return n ? { n, i, words: found.orders[n - 1].ours[i] } : { words: "nothing yet" };
    }

    // A box for each n-gram, centered under (or above) its words.
    function box(n, i, side, y, counts, same) {
      const text = found.orders[n - 1][side][i];
      const x = LABEL + WIDE * (i + (n - 1) / 2) + 3;
      const state = `${counts ? "live-found" : "live-missed"} ${same ? "live-asking" : ""}`;
      const word = n > 1 ? [] : [svg("text", { x: x + WIDE / 2 - 3, y: y + 15, "text-anchor": "middle", ...(text.length > 7 ? { textLength: WIDE - 10, lengthAdjust: "spacingAndGlyphs" } : {}) }, text)];
      const place = side === "ours" && places.findIndex(([m, j]) => m === n && j === i);
      return svg("g", { class: `live-ngram ${state}`, click: side === "ours" && (() => { look.input.value = place; look.tell(); update(false); }) },
        svg("rect", { x, y: y + 1, width: WIDE - 6, height: HIGH - 2, rx: 3 }), ...word);
    }

    function draw() {
      const across = Math.max(4, words.length, reference.length);
      const { n: asked, i: start, words: asking } = looked_at();
      const parts = range(1, 4).flatMap((n) => {
        const { ours, theirs, counts } = found.orders[n - 1];
        const here = clipped(theirs, ours); // the same rule from the reference's side
        const [above, below] = [HIGH * (4 - n), 8 + HIGH * (3 + n)];
        const label = (y, name) => svg("text", { class: "live-share", x: LABEL - 8, y: y + 15, "text-anchor": "end" }, n > 1 ? `n = ${n}` : name);
        return [label(above, "reference"), label(below, "yours"),
          ...theirs.map((text, i) => box(n, i, "theirs", above, here[i], asked === n && text === asking)),
          ...ours.map((_, i) => box(n, i, "ours", below, counts[i], asked === n && i === start))];
      });
      drawing.setAttribute("viewBox", `0 0 ${LABEL + WIDE * across} ${8 + 8 * HIGH}`);
      drawing.style.setProperty("--across", across);
      drawing.setAttribute("aria-label", `Reference: ${reference.join(" ")} Yours: ${words.join(" ")} Found: ${found.orders.map(({ found: some, ours }) => `${some} of ${ours.length}`).join(", ")}.`);
      drawing.replaceChildren(...parts);
    }

    function update(typed) {
      words = live.tokenize(field.value).split(" ").filter(Boolean);
      const dropped = words.length - LONGEST;
      words = words.slice(0, LONGEST);
      reference = SENTENCES[chosen.value][1].split(" ");
      found = bleu(words, reference);
      places = found.orders.flatMap(({ ours }, n) => ours.map((_, i) => [n + 1, i]));
      look.input.max = Math.max(0, places.length - 1);
      look.input.disabled = !places.length;
      if (typed) look.input.value = Math.max(0, places.findIndex(([n, i]) => !found.orders[n - 1].counts[i]));
      look.tell();
      draw();

      table.replaceChildren(...found.orders.map(({ found: some, ours }, i) => html("tr", {}, html("th", { scope: "row" }, `p${"₁₂₃₄"[i]}`), html("td", {}, `${some} of ${ours.length}`), html("td", {}, percent(found.precisions[i])))),
        html("tr", {}, html("th", { scope: "row" }, "brevity"), html("td", {}, `${found.c} for ${found.r} words`), html("td", {}, found.brevity.toFixed(3))));
      const smooth = found.score === found.smoothed ? "" : `, with smooth:exp ${found.smoothed.toFixed(2)}`;
      total.replaceChildren("BLEU ", html("b", {}, found.score.toFixed(2)), smooth);
      said.replaceChildren(words_about(looked_at()) + (dropped > 0 ? ` Only the first ${LONGEST} words count.` : ""));
    }

    function words_about({ n, i, words: text }) {
      if (!n) return "Type a translation.";
      const { ours, theirs, counts } = found.orders[n - 1];
      const times = (list) => list.filter((each) => each === text).length;
      const often = (number) => (number === 1 ? "once" : number === 2 ? "twice" : `${number} times`);
      if (!times(theirs)) return `“${text}” is not in the reference.`;
      const end = counts[i] ? "It counts." : "This one is too many and does not count.";
      return `“${text}” is here ${often(times(ours))} and in the reference ${often(times(theirs))}. ${end}`;
    }

    choose();
    return html("div", { class: "live-panel live-bleu" },
      html("div", { class: "live-row live-typed" }, chosen, field),
      html("div", { class: "live-columns" },
        html("div", {}, html("div", { class: "live-scroll", tabindex: 0, role: "group", "aria-label": "n-grams" }, drawing), look.row),
        html("div", {}, html("table", { class: "live-table" }, table), total)), said);
  }

  live.bleu = Object.assign(bleu, { SENTENCES });
  live.mount("bleu", build);
}
