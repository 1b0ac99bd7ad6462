// What attention makes of a sentence and of its words in another order, for Chapter 2: with positions and without.
"use strict";
{
  const { html, svg, text_field } = live;
  const D = 8, MOST = 6; // numbers in a vector, words that are read

  // Any word has a vector, always the same one.
  const number_of = (word) => [...word].reduce((sum, letter, i) => sum + letter.codePointAt(0) * (i + 1), 0);
  const row_of = (word) => Array.from({ length: D }, (_, j) => Math.sin(number_of(word) * (j + 1)));
  const place_of = (t) => Array.from({ length: D }, (_, j) => {
    const angle = t / 10000 ** ((j - (j % 2)) / D);
    return j % 2 ? Math.cos(angle) : Math.sin(angle);
  });

  // Self-attention without matrices: each vector asks all of them, itself among them.
  function attended(words, positions) {
    const x = words.map((word, t) => row_of(word).map((number, j) => number + (positions ? place_of(t)[j] : 0)));
    return x.map((query) => {
      const shares = x.map((key) => Math.exp(key.reduce((sum, number, j) => sum + number * query[j], 0) / Math.sqrt(D)));
      const total = shares.reduce((sum, share) => sum + share, 0);
      return query.map((_, j) => shares.reduce((sum, share, s) => sum + (share / total) * x[s][j], 0));
    });
  }

  const words_of = (text) => text.toLowerCase().split(/[\s.,]+/u).filter(Boolean).slice(0, MOST);

  // For each word of one sentence its place in the other: the first there for the first here, and so on.
  function partners(words, others) {
    const free = others.map((word, s) => [word, s]);
    return words.map((word) => {
      const found = free.findIndex(([other]) => other === word);
      return found < 0 ? undefined : free.splice(found, 1)[0][1];
    });
  }

  function build() {
    const fields = ["the dog bites the man", "the man bites the dog"].map((value, i) =>
      text_field({ value, "aria-label": i ? "The same words in another order" : "A sentence" }, 60, update));
    const positions = html("input", { type: "checkbox", change: update });
    const map = svg("svg", { class: "live-bars live-order", role: "img" });
    const said = html("output", { class: "live-said" });

    const cells = (vector, x, y) => vector.map((number, j) =>
      svg("rect", { class: number > 0 ? "live-main" : "live-other", x: x + 22 * j, y, width: 20, height: 22, "fill-opacity": Math.min(1, Math.abs(number) / 1.5).toFixed(2) }));

    function update() {
      const [words, others] = fields.map(({ input }) => words_of(input.value));
      const [here, there] = [words, others].map((each) => attended(each, positions.checked));
      const places = partners(words, others);
      const apart = Math.max(0, ...places.flatMap((s, t) => (s === undefined ? [] : here[t].map((number, j) => Math.abs(number - there[s][j])))));
      const same = words.length === others.length && !places.includes(undefined);
      map.setAttribute("viewBox", `0 0 480 ${34 + 27 * Math.max(1, words.length)}`);
      map.replaceChildren(
        ...[["in the first", 90], ["in the second", 290]].map(([text, x]) => svg("text", { x, y: 20 }, text)),
        ...words.flatMap((word, t) => [svg("text", { x: 82, y: 46 + 27 * t, "text-anchor": "end" }, word.slice(0, 10)),
          ...cells(here[t], 90, 30 + 27 * t), ...(places[t] === undefined ? [] : cells(there[places[t]], 290, 30 + 27 * t))]));
      const how = positions.checked ? "With positions" : "Without positions";
      const verdict = apart < 1e-9 ? "every word has the same vector in both: the order is lost" : `a word's vectors in the two differ by up to ${apart.toFixed(2)}`;
      const sentence = `${how}, ${verdict}.${same ? "" : " (These two aren't the same words.)"}`;
      map.setAttribute("aria-label", `Vectors of the words after attention, in both sentences. ${sentence}`);
      said.replaceChildren(sentence);
    }

    update();
    return html("div", { class: "live-panel live-orders" }, html("div", { class: "live-halves" },
      html("div", {}, ...fields.flatMap(({ input, note }) => [html("div", { class: "live-row" }, input), note]), html("label", { class: "live-row" }, positions, " add positions")), map), said);
  }

  live.mount("order", build);
}
