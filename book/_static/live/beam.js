// Beam search on the model of small Portuguese, for Chapter 8: a tree that grows step by step, with its scores.
"use strict";
{
  const { html, svg, signed, slider, range } = live;
  const NARROW = 560; // pixels; below them the tree grows downward
  const FIRST_STOP = 3; // steps that are seen at first

  // Where a tree of so many steps and candidates has its boxes, in a window of that width. A step is a column, and on
  // a narrow window a row, with a token above its number.
  function layout(window_width, steps, candidates) {
    if (window_width < NARROW) {
      const each = Math.max(52, Math.min(120, (window_width - 2) / candidates));
      const [width, height] = [each * candidates, 60 + 70 * steps];
      const box = { wide: each - 5, high: 44, start: [width / 2 - 31, 4], token: [(each - 5) / 2, 18], number: [(each - 5) / 2, 36] };
      return { width, height, ...box, down: true, place: (step, rank) => [rank * each + 2, 60 + 70 * step] };
    }
    const each = Math.max(92, Math.min(126, (window_width - 70) / steps));
    const [width, height] = [70 + each * steps, 4 + 25 * candidates];
    const box = { wide: each - 18, high: 22, start: [4, 2], token: [7, 16], number: [each - 24, 16] };
    return { width, height, ...box, down: false, place: (step, rank) => [84 + each * step, 2 + 25 * rank] };
  }

  // The curve from one box to another, in the direction of growth.
  function link(from, [x, y], { wide, high, down }, width_of_first) {
    if (down) {
      const [x0, y0] = [from[0] + (width_of_first ?? wide) / 2, from[1] + (width_of_first ? 34 : high)];
      return `M${x0} ${y0}C${x0} ${y0 + 14} ${x + wide / 2} ${y - 14} ${x + wide / 2} ${y}`;
    }
    const [x0, y0] = [from[0] + (width_of_first ?? wide), from[1] + high / 2];
    return `M${x0} ${y0}C${x0 + 12} ${y0} ${x - 12} ${y + high / 2} ${x} ${y + high / 2}`;
  }

  function build(model, record) {
    const vocabulary = new live.Vocabulary(record.vocabulary);
    const { eos_id } = model.config;
    let found;
    let shown = 0; // steps

    const field = live.text_field({ class: "live-text", lang: "pt", value: "as escritoras convidam a rita ." }, 60, search);
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
    const table = html("table", { class: "live-table live-ranking" }, html("thead", {}, html("tr", {}, ...heads)), ranking);

    const sentence = (tokens) => vocabulary.words(tokens.filter((token) => token !== eos_id)).map(({ text }) => text).join(" ");

    function search() {
      if (!field.fits) return clear();
      const src = [...vocabulary.encode(live.tokenize(field.input.value)), eos_id];
      found = live.beam_search(model, src, beam_size.value, alpha.value, 2 * src.length + 10);
      show(Infinity);
    }

    // Without a sentence that can be read, nothing is left of the search before.
    function clear() {
      found = undefined;
      for (const part of [tree, ranking, said]) part.replaceChildren();
      table.hidden = true;
      tree.setAttribute("aria-label", "There is no search.");
      allow([...back, ...forward], false);
    }

    function show(step) {
      if (!found) return;
      const { steps, best } = found;
      shown = Math.max(1, Math.min(steps.length, step));
      const last = shown === steps.length;
      const chosen = last ? best : steps[shown - 1].ended;
      allow(back, shown > 1);
      allow(forward, !last);
      draw(chosen);
      table.hidden = !chosen.length;
      ranking.replaceChildren(...chosen.map(({ tokens, log_prob, score, fate }) => html("tr", {},
        html("td", { lang: "en" }, sentence(tokens), fate === "kept" ? " …" : ""), html("td", {}, String(tokens.length)),
        html("td", {}, signed(log_prob)), html("td", {}, signed(score)))));
      const kept = steps[shown - 1].found.filter(({ fate }) => fate === "kept");
      const goes_on = `It goes on with ${kept.map(({ tokens, log_prob }) => `“${sentence(tokens)}” (${signed(log_prob)})`).join(", ")}. `
        + `In the end “${sentence(best[0].tokens)}” will win.`;
      const result = `The best is “${sentence(best[0].tokens)}”, with the score ${signed(best[0].score)}.`;
      const count = `${steps[shown - 1].ended.length} of ${beam_size.value} translations are finished`;
      said.replaceChildren(`Step ${shown} of ${steps.length}: ${count}. ${last ? result : goes_on}`);
    }

    // The steps so far and, pale, those to come.
    function draw(chosen) {
      const { steps, best } = found;
      const form = layout(window_on.clientWidth || Math.min(790, innerWidth - 50), steps.length, 2 * beam_size.value);
      const places = new Map(steps.flatMap(({ found }, step) => found.map((each, rank) => [each, form.place(step, rank)])));
      const way_to = (end) => {
        const way = new Set();
        for (let each = end; each; each = each.from) way.add(each);
        return way;
      };
      const way = way_to(chosen[0] ?? steps[shown - 1].found[0]); // to the best so far
      const [winning, seen] = [way_to(best[0]), new Set(steps.slice(0, shown).flatMap(({ found }) => found))];
      const state = (each) => `live-${each.fate}${way.has(each) ? " live-best" : ""}${seen.has(each) ? "" : ` live-later${winning.has(each) ? " live-winning" : ""}`}`;
      const all = [...places.keys()];
      const links = all.map((each) => svg("path", {
        class: `live-link ${state(each)}`, d: link(places.get(each.from) ?? form.start, places.get(each), form, each.from.token === undefined ? 62 : undefined),
      }));
      const boxes = all.map((each) => {
        const [x, y] = places.get(each);
        const anchors = form.down ? ["middle", "middle"] : ["start", "end"];
        const word = vocabulary.shown(each.token) || "▁", room = form.wide - (form.down ? 6 : 43);
        const fitted = 6.2 * word.length > room + 9 ? { textLength: room, lengthAdjust: "spacingAndGlyphs" } : {};
        return svg("g", { class: `live-node ${state(each)}` },
          svg("rect", { x, y, width: form.wide, height: form.high, rx: 5 }),
          svg("text", { x: x + form.token[0], y: y + form.token[1], "text-anchor": anchors[0], ...fitted }, word),
          svg("text", { class: "live-number", x: x + form.number[0], y: y + form.number[1], "text-anchor": anchors[1] }, signed(each.log_prob)));
      });
      const [x, y] = form.start;
      const start = svg("g", { class: "live-node live-kept live-best" }, svg("rect", { x, y, width: 62, height: form.down ? 34 : form.high, rx: 5 }),
        svg("text", { x: x + 31, y: y + (form.down ? 22 : 16), "text-anchor": "middle" }, "start"));
      const { width, height } = form;
      for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) tree.setAttribute(name, value);
      tree.setAttribute("aria-label", `${shown} of ${steps.length} steps of the search. The best so far: ${
        [...way].reverse().slice(1).map(({ token, log_prob }) => `${vocabulary.shown(token)} ${signed(log_prob)}`).join(", ")}.`);
      tree.replaceChildren(...links, start, ...boxes);
      bring_into_view([...way].filter((each) => seen.has(each)).map((each) => places.get(each)), form);
    }

    // Where the tree is wider than its window, the window goes to the newest box of the best way.
    function bring_into_view(way, { wide }) {
      const [[x]] = way.length ? way : [[0]];
      const { clientWidth, scrollLeft } = window_on;
      if (x < scrollLeft || x + wide > scrollLeft + clientWidth) window_on.scrollLeft = x + wide / 2 - clientWidth / 2;
    }

    let width = 0;
    new ResizeObserver(() => requestAnimationFrame(() => {
      if (window_on.clientWidth === width) return;
      width = window_on.clientWidth;
      show(shown);
    })).observe(window_on);
    search();
    show(FIRST_STOP);
    return html("div", { class: "live-panel live-beam" },
      html("div", { class: "live-row" }, html("label", { class: "live-typed" }, "Portuguese ", field.input), ...back, ...forward), field.note,
      window_on, html("div", { class: "live-told" }, said, html("div", { class: "live-stack" }, beam_size.row, alpha.row)), table);
  }

  live.mount("beam", build, "phrases");
}
