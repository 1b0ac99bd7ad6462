// The decoder reads what it has said, shifted by one, for Chapter 5: the reader says the next token, or lets it.
"use strict";
{
  const { html, svg, percent } = live;
  const CANDIDATES = 4;
  const LONGEST = 30; // tokens of a translation
  const [LEFT, EACH, BOX] = [62, 84, 72]; // pixels: before the first position, from one to the next, and of a token

  function build(model, record) {
    const vocabulary = new live.Vocabulary(record.vocabulary);
    const { bos_id, eos_id } = model.config;
    const token = (id) => vocabulary.shown(id);
    let memory, next; // of the source; the likeliest tokens, where the text goes on
    let tokens = []; // said so far

    const field = live.text_field({ class: "live-text", lang: "pt", value: record.sentence, "aria-label": "A sentence of small Portuguese" }, 60, begin);
    const button = (words, click) => html("button", { type: "button", class: "live-button", click }, words);
    const again = button("Start over", () => say([]));
    const drawing = svg("svg", { class: "live-shift", role: "img" });
    const choices = html("div", { class: "live-next", role: "group", "aria-label": "Tokens to say next" });
    const said = html("output", { class: "live-said" });

    function begin() {
      memory = field.fits ? model.encode([...vocabulary.encode(live.tokenize(field.input.value)), eos_id]) : undefined;
      say([]);
    }

    function say(more) {
      tokens = more;
      const open = memory && tokens.at(-1) !== eos_id && tokens.length < LONGEST;
      next = open ? live.next_words(model, memory, [bos_id, ...tokens], CANDIDATES, () => true) : [];
      update();
    }

    const go_on = () => next.length && say([...tokens, ...next[0].tokens]);
    function to_the_end() {
      while (next.length) go_on();
    }

    function update() {
      choices.replaceChildren(...next.map(({ tokens: [id], probability }) => {
        const bar = html("span", { class: "live-next-bar" });
        bar.style.setProperty("--weight", probability);
        const click = () => { say([...tokens, id]); (choices.querySelector("button") ?? again).focus(); };
        return html("button", { type: "button", class: "live-candidate", click }, html("span", { lang: "en" }, token(id)), bar, html("span", {}, percent(probability)));
      }));
      const read = [bos_id, ...tokens].map(token).join(" ");
      const told = next.length ? `After “${read}”, the likeliest is “${token(next[0].tokens[0])}”. Choose it, or another.` : memory ? `All of it: “${read}”.` : "";
      said.replaceChildren(told);
      draw(told);
    }

    function draw(told) {
      const wide = panel.clientWidth || 700;
      const read = [bos_id, ...tokens].slice(0, tokens.length + (next.length ? 1 : 0));
      const first = Math.max(0, read.length - Math.floor((wide - LEFT + EACH - BOX) / EACH)); // position that is seen
      const box = (x, y, words, state) => svg("g", { class: `live-box ${state}` }, svg("rect", { x, y, width: BOX, height: 28, rx: 4 }),
        svg("text", { class: "live-word-token", x: x + BOX / 2, y: y + 19, style: words.length > 9 && "font-size: 11px" }, words));
      const arrow = (d) => svg("path", { class: "live-arrow", d });
      const positions = read.slice(first).flatMap((id, i) => {
        const x = LEFT + EACH * i, answer = tokens[first + i];
        const shift = first + i + 1 < read.length ? [arrow(`M${x + BOX} 100C${x + EACH + 4} 100 ${x + BOX - 4} 16 ${x + EACH} 16`)] : [];
        return [arrow(`M${x + BOX / 2} 31V43M${x + BOX / 2} 73V85`), ...shift, box(x, 2, token(id), ""), box(x, 86, answer === undefined ? "?" : token(answer), answer === undefined ? "live-asked" : "")];
      });
      const band = svg("rect", { class: "live-field", x: LEFT, y: 44, width: Math.max(1, read.length - first) * EACH + BOX - EACH, height: 28, rx: 4 });
      drawing.setAttribute("viewBox", `0 0 ${wide} 116`);
      drawing.setAttribute("aria-label", `Tokens that the decoder reads, and below each the one that it says, which it reads next. ${told}`);
      drawing.replaceChildren(band, ...[["reads", 21], ["decoder", 63], ["says", 105]].map(([text, y]) => svg("text", { x: 0, y }, text)), ...positions);
    }

    const panel = html("div", { class: "live-panel live-shifted" },
      html("div", { class: "live-row live-typed" }, field.input, button("Likeliest token", go_on), button("To the end", to_the_end), again),
      field.note, drawing, html("div", { class: "live-halves" }, choices, said));
    let width = 0;
    new ResizeObserver(() => requestAnimationFrame(() => {
      if (panel.clientWidth !== width) draw(said.textContent);
      width = panel.clientWidth;
    })).observe(panel);
    begin();
    for (let count = 0; count < 4; count++) go_on();
    return panel;
  }

  live.mount("shift", build, "phrases");
}
