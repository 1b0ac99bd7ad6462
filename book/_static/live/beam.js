// Beam search on the model of small Portuguese, for Chapter 8: a tree that grows step by step, with its scores.
"use strict";
{
  const { html, svg, signed, slider, range } = live;
  const [WIDE, HIGH] = [126, 42]; // from step to step, from candidate to candidate
  const BOX = 106;

  function build(model, record) {
    const vocabulary = new live.Vocabulary(record.vocabulary);
    const { eos_id } = model.config;
    let found;
    let shown = 0; // steps

    const input = html("input", {
      type: "text", class: "live-text", lang: "pt", maxlength: 60, autocomplete: "off", autocapitalize: "off", spellcheck: "false",
      value: "as escritoras convidam a rita .", input: search,
    });
    const beam_size = slider("Beam size K", range(1, 5), 3, String, search);
    const alpha = slider("Length penalty α", range(0, 2, 0.1), 0.6, (value) => value.toFixed(1), search);
    const button = (text, change) => html("button", { type: "button", class: "live-button", click: () => show(shown + change) }, text);
    const back = [button("First step", -Infinity), button("Back", -1)];
    const forward = [button("Forward", 1), button("Last step", Infinity)];
    // Not `disabled`, with which a button loses the keyboard.
    const allow = (buttons, possible) => buttons.forEach((each) => each.setAttribute("aria-disabled", !possible));
    const tree = svg("svg", { class: "live-tree", role: "img" });
    const window_on = html("div", { class: "live-scroll", tabindex: 0, role: "group", "aria-label": "The tree, step by step" }, tree);
    const said = html("output", { class: "live-said" });
    const ranking = html("tbody");
    const heads = ["Finished", "tokens", "log p", "score"].map((text) => html("th", { scope: "col" }, text));

    const sentence = (tokens) => vocabulary.words(tokens.filter((token) => token !== eos_id)).map(({ text }) => text).join(" ");

    function search() {
      const src = [...vocabulary.encode(live.tokenize(input.value)), eos_id];
      found = live.beam_search(model, src, beam_size.value, alpha.value, 2 * src.length + 10);
      show(Infinity);
    }

    function show(step) {
      const { steps, best } = found;
      shown = Math.max(1, Math.min(steps.length, step));
      const last = shown === steps.length;
      const chosen = last ? best : steps[shown - 1].ended;
      allow(back, shown > 1);
      allow(forward, !last);
      draw(chosen);
      ranking.replaceChildren(...chosen.map(({ tokens, log_prob, score, fate }) => html("tr", {},
        html("td", { lang: "en" }, sentence(tokens), fate === "kept" ? " …" : ""), html("td", {}, String(tokens.length)),
        html("td", {}, signed(log_prob)), html("td", {}, signed(score)))));
      const kept = steps[shown - 1].found.filter(({ fate }) => fate === "kept");
      const goes_on = `It goes on with ${kept.map(({ tokens, log_prob }) => `“${sentence(tokens)}” (${signed(log_prob)})`).join(", ")}.`;
      const result = `The best is “${sentence(best[0].tokens)}”, with the score ${signed(best[0].score)}.`;
      const count = `${steps[shown - 1].ended.length} of ${beam_size.value} translations are finished`;
      said.replaceChildren(`Step ${shown} of ${steps.length}: ${count}. ${last ? result : goes_on}`);
    }

    function draw(chosen) {
      const steps = found.steps.slice(0, shown);
      const places = new Map();
      steps.forEach(({ found }, step) => found.forEach((each, rank) => places.set(each, [(step + 1) * WIDE - 34, 8 + rank * HIGH])));
      const way = new Set(); // to the best so far
      for (let each = chosen[0] ?? steps.at(-1).found[0]; each; each = each.from) way.add(each);
      const all = [...places.keys()];
      const links = all.map((each) => {
        const [x, y] = places.get(each);
        const [x0, y0] = places.get(each.from) ?? [66 - BOX, 8];
        const d = `M${x0 + BOX} ${y0 + 17}C${x0 + BOX + 14} ${y0 + 17} ${x - 14} ${y + 17} ${x} ${y + 17}`;
        return svg("path", { class: `live-link live-${each.fate}${way.has(each) ? " live-best" : ""}`, d });
      });
      const boxes = all.map((each) => {
        const [x, y] = places.get(each);
        return svg("g", { class: `live-node live-${each.fate}${way.has(each) ? " live-best" : ""}` },
          svg("rect", { x, y, width: BOX, height: 34, rx: 5 }),
          svg("text", { x: x + 7, y: y + 22 }, vocabulary.shown(each.token)),
          svg("text", { class: "live-number", x: x + BOX - 6, y: y + 22, "text-anchor": "end" }, signed(each.log_prob)));
      });
      const start = svg("g", { class: "live-node live-kept live-best" }, svg("rect", { x: 4, y: 8, width: 62, height: 34, rx: 5 }),
        svg("text", { x: 35, y: 30, "text-anchor": "middle" }, "start"));
      const [width, height] = [(shown + 1) * WIDE - 46, 8 + 2 * beam_size.value * HIGH];
      for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) tree.setAttribute(name, value);
      tree.setAttribute("aria-label", `${shown} steps of the search. The best so far: ${
        [...way].reverse().slice(1).map(({ token, log_prob }) => `${vocabulary.shown(token)} ${signed(log_prob)}`).join(", ")}.`);
      tree.replaceChildren(...links, start, ...boxes);
      window_on.scrollLeft = width;
    }

    search();
    return html("div", { class: "live-panel live-beam" },
      html("label", { class: "live-row live-typed" }, "Portuguese ", input),
      html("div", { class: "live-sliders live-stack" }, beam_size.row, alpha.row),
      html("div", { class: "live-row" }, ...back, ...forward), window_on, said,
      html("table", { class: "live-table live-ranking" }, html("thead", {}, html("tr", {}, ...heads)), ranking));
  }

  live.mount("beam", build, "phrases");
}
