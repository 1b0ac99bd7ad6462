// The decoder's residual stream, for Chapter 14: what it would say after each sublayer, and without some of them.
"use strict";
{
  const { html, svg, percent, slider, range } = live;
  const NARROW = 700; // pixels; below them a token stands above its probability
  // Where a rung has its parts: from one to the next, the whole width, boxes from where, how wide, and their words.
  const FORMS = {
    wide: { high: 26, across: 542, from: 196, wide: 112, name: 14, bar: [18, 4], added: [190, 14, "end"], token: [6, 15, "start"], share: [106, 15, "end"], long: 11.5 },
    narrow: { high: 41, across: 480, from: 186, wide: 94, name: 15, bar: [22, 6], added: [122, 29, "start"], token: [47, 17, "middle"], share: [47, 32, "middle"] },
  };
  const SHOWN = 3; // tokens of a rung
  const LONGEST = 40; // tokens of a translation

  const length_of = (vector) => Math.hypot(...vector);
  const best_of = (probabilities) => [...probabilities.keys()].sort((a, b) => probabilities[b] - probabilities[a]).slice(0, SHOWN);

  function build(model, record) {
    const vocabulary = new live.Vocabulary(record.vocabulary);
    const { bos_id, eos_id } = model.config;
    const kinds = ["self-attention", "cross-attention", "network"];
    const names = model.decoder.layers.flatMap((_, n) => kinds.map((kind) => `${kind} ${n + 1}`));
    const silent = new Set(); // sublayers that add nothing, counted from 1
    const token = (id) => vocabulary.shown(id);
    let memory, read, made; // what the decoder reads at each position, and what it makes of it with all of its sublayers

    const field = live.text_field({ class: "live-text", lang: "pt", value: record.sentence, "aria-label": "A sentence of small Portuguese" }, 60, retell);
    const { input } = field;
    translate();
    const place = slider("Position", range(0, LONGEST), 5, (t) => `${t + 1}, after “${token(read[t] ?? eos_id)}”`, update);
    const drawing = svg("svg", { class: "live-ladder", role: "img" });
    const said = html("output", { class: "live-said" });
    const buttons = names.map((name, n) => html("button", { type: "button", class: "live-button", click: () => toggle(n + 1) }, name));
    const back = html("button", { type: "button", class: "live-button", click: () => { silent.clear(); update(); } }, "Put everything back");

    function translate() {
      const src = [...vocabulary.encode(live.tokenize(input.value)), eos_id];
      memory = model.encode(src);
      made = live.greedy_search(model, src, LONGEST).tokens;
      read = [bos_id, ...made.slice(0, -1)];
    }

    function retell() {
      if (field.fits) translate();
      update();
    }

    function toggle(sublayer) {
      if (!silent.delete(sublayer)) silent.add(sublayer);
      update();
    }

    // The rungs at one position, from the embedding down: what came, what was added, and what the sum would say.
    function rungs_at(t) {
      const states = live.residual_stream(model, memory, read, silent).map((state) => state[t]);
      return states.map((state, i) => {
        const probabilities = live.logit_lens(model, state);
        const added = i ? state.map((value, j) => value - states[i - 1][j]) : state;
        return { name: i ? names[i - 1] : "embedding", added: length_of(added), best: best_of(probabilities), probabilities };
      });
    }

    // Without a sentence that can be read, nothing is left of the one before.
    function clear() {
      for (const part of [drawing, said]) part.replaceChildren();
      drawing.setAttribute("aria-label", "There is no answer.");
    }

    function update() {
      if (!field.fits) return clear();
      place.input.max = read.length - 1;
      place.tell();
      const t = place.value;
      const rungs = rungs_at(t);
      draw(rungs, made[t]);
      buttons.forEach((button, n) => button.setAttribute("aria-pressed", silent.has(n + 1)));
      back.setAttribute("aria-disabled", !silent.size);
      const { best: [first], probabilities } = rungs.at(-1);
      const missing = silent.size ? `Without ${[...silent].sort().map((n) => names[n - 1]).join(", ")}` : "With all sublayers";
      const wanted = first === made[t] ? "" : ` instead of “${token(made[t])}” (${percent(probabilities[made[t]])})`;
      said.replaceChildren(`${missing}, the decoder says “${token(first)}” (${percent(probabilities[first])}) after “${token(read[t])}”${wanted}.`);
    }

    function draw(rungs, right) {
      const form = FORMS[(panel.clientWidth || Math.min(NARROW, innerWidth - 50)) < NARROW ? "narrow" : "wide"];
      const longest = Math.max(...rungs.map(({ added }) => added));
      drawing.setAttribute("viewBox", `0 0 ${form.across} ${form.high * rungs.length + 22}`);
      drawing.setAttribute("aria-label", rungs.map(({ name, added, best, probabilities }, i) =>
        `${name}: ${silent.has(i) ? "removed" : `adds ${added.toFixed(1)}`}; ${best.map((id) => `${token(id)} ${percent(probabilities[id])}`).join(", ")}`).join(". "));
      const text = (x, y, words, more = {}) => svg("text", { x, y, ...more }, words);
      const rows = rungs.map(({ name, added, best, probabilities }, i) => {
        const y = 22 + form.high * i;
        const put = ([x, down, anchor], from, words, more = {}) => text(from + x, y + down, words, { "text-anchor": anchor, ...more });
        const bar = svg("rect", { class: "live-size", x: 28, y: y + form.bar[0], width: (86 * added / longest).toFixed(1), height: form.bar[1] });
        const words = best.map((id, rank) => {
          const x = form.from + (form.wide + 4) * rank, word = token(id);
          const size = form.long && word.length > 9 ? { style: `font-size: ${form.long}px` } : {}; // it ends before its probability
          return svg("g", { class: id === right ? "live-right" : "" },
            svg("rect", { class: "live-word-box", x, y: y + 1, width: form.wide, height: form.high - 4, rx: 4, style: `--weight: ${probabilities[id].toFixed(3)}` }),
            put(form.token, x, word, size), put(form.share, x, percent(probabilities[id]), { class: "live-share" }));
        });
        return svg("g", { class: `live-rung ${i ? "live-sublayer" : ""} ${silent.has(i) ? "live-silent" : ""}`, click: i ? () => toggle(i) : false },
          svg("rect", { class: "live-field", x: 0, y, width: form.from - 6, height: form.high - 2 }),
          svg("circle", { cx: 12, cy: y + form.high / 2 - 1, r: 5 }), text(28, y + form.name, name), bar,
          put(form.added, 0, silent.has(i) ? "removed" : `+ ${added.toFixed(1)}`, { class: "live-share" }), ...words);
      });
      const heads = [text(28, 14, "adds a vector of length", { class: "live-share" }), text(form.from, 14, "and then the stream would say", { class: "live-share" })];
      drawing.replaceChildren(svg("path", { class: "live-arrow", d: `M12 ${22 + form.high / 2}V${22 + form.high * rungs.length - 6}` }), ...heads, ...rows);
    }

    const panel = html("div", { class: "live-panel live-stream" }, html("div", { class: "live-typed-and-place" }, html("div", { class: "live-row live-typed" }, input), place.row), field.note,
      html("div", { class: "live-beside" }, drawing, html("div", {}, said,
        html("div", { class: "live-removed", role: "group", "aria-label": "Remove" }, html("span", {}, "Remove:"), back, ...buttons))));
    let width = 0;
    new ResizeObserver(() => requestAnimationFrame(() => {
      if (panel.clientWidth !== width) update();
      width = panel.clientWidth;
    })).observe(panel);
    update();
    return panel;
  }

  live.mount("stream", build, "phrases");
}
