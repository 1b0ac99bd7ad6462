// A small Llama that goes on with what a reader has begun, word by word, for Chapter 15.
"use strict";
{
  const { html, percent } = live;
  const [LONGEST, MOST] = [60, 60]; // characters of a beginning, tokens of a text
  const CANDIDATES = 6;
  const UNKNOWN = 1;

  function build(model, record) {
    const vocabulary = new live.Vocabulary(record.vocabulary);
    const { bos_id, eos_id } = record;
    const stops = (token, before) => token === eos_id || (!before && vocabulary.begins(token));
    let begun = [];
    let added = []; // the words so far, each a list of tokens

    const field = live.text_field({ class: "live-text", lang: "pt", value: record.prompt }, LONGEST, begin);
    const text = html("p", { class: "live-speech", lang: "pt" });
    const spoken = html("output", { class: "live-spoken" });
    const candidates = html("div", { class: "live-next", role: "group", "aria-label": "Words that may follow" });
    const said = html("p", { class: "live-said" });
    const button = (words, click) => html("button", { type: "button", class: "live-button", click }, words);
    const on = [button("Likeliest words", () => write(likeliest)), button("Words at random", () => write(random))];
    const back = button("One word back", () => { added.pop(); show(); });

    const ids = () => [bos_id, ...begun, ...added.flat()];
    const ended = () => added.at(-1)?.at(-1) === eos_id;
    const full = () => ids().length >= MOST;
    const named = (tokens) => (tokens[0] === eos_id ? "end" : (vocabulary.begins(tokens[0]) ? "" : "-") + vocabulary.words(tokens)[0].text);

    function begin() {
      begun = field.fits ? vocabulary.encode(live.tokenize(field.input.value)) : [];
      added = [];
      show();
    }

    // The likeliest word, or a token from the model's own distribution, which may belong to the word before it.
    const likeliest = ({ words }) => words[0].tokens;
    function random({ probabilities }) {
      let rest = Math.random();
      return [probabilities.findIndex((share) => (rest -= share) < 0)].map((token) => (token < 0 ? eos_id : token));
    }

    // What the model writes to the end; a text that has ended begins again.
    function write(choose) {
      if (ended() || full()) added = [];
      const cache = model.empty();
      while (!ended() && !full()) {
        const tokens = choose(live.words_after(model, ids(), 1, stops, cache));
        if (added.length && !stops(tokens[0], false)) added.at(-1).push(...tokens);
        else added.push(tokens);
      }
      show();
    }

    function add(tokens) {
      added.push(tokens);
      show();
      (candidates.querySelector("button") ?? back).focus();
    }

    function show() {
      const words = (tokens) => vocabulary.words(tokens.filter((token) => token !== eos_id)).map((word) => word.text).join(" ");
      const [first, whole] = [words(begun), words([...begun, ...added.flat()])];
      text.replaceChildren(html("span", {}, first), html("b", {}, whole.slice(first.length)), ended() ? "" : " …");
      spoken.replaceChildren(added.length ? whole : "");
      back.disabled = !added.length;
      for (const each of on) each.disabled = !field.fits;
      const remarks = [
        begun.includes(UNKNOWN) && "The vocabulary lacks a letter of this beginning.",
        ended() && "The model has chosen the end of the text.",
        !ended() && full() && `A text has at most ${MOST} tokens here.`,
      ].filter(Boolean);
      said.replaceChildren(remarks.join(" ") || "Choose the next word yourself, or let the model choose all of them.");
      candidates.replaceChildren(...(field.fits && !ended() && !full() ? choices() : []));
    }

    function choices() {
      return live.words_after(model, ids(), CANDIDATES, stops).words.map(({ tokens, probability }) => {
        const bar = html("span", { class: "live-next-bar" });
        bar.style.setProperty("--weight", probability);
        return html("button", { type: "button", class: "live-candidate", click: () => add(tokens) },
          html("span", { lang: "pt" }, named(tokens)), bar, html("span", {}, percent(probability)));
      });
    }

    begin();
    return html("div", { class: "live-panel live-speaker" },
      html("label", { class: "live-row live-typed" }, "Begin with ", field.input), field.note, text,
      html("div", { class: "live-row" }, ...on, back), candidates, said, spoken);
  }

  live.mount("speaker", build);
}
