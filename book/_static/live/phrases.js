// The translator of small Portuguese: sentences from menus or from the keyboard, and what each English word attended to.
"use strict";
{
  const { html, svg, percent } = live;
  const GLUED = /^([.,;:?!]|n't|'(s|re|ve|m|ll|d))$/; // stands without a blank before it
  const STEP = 420; // milliseconds from word to word
  const LONGEST = 90; // characters
  const SURE = 0.5; // of a word with a smaller probability the model is not sure
  const CANDIDATES = 3;
  const pick = (list) => list[Math.floor(list.length * Math.random())];

  // A sentence of appendix A: choice is {subject, negation, verb, tense, noun, adjective, mark}.
  function compose({ subjects, verbs, nouns, contractions }, choice) {
    const { verb, preposition, forms } = verbs.find(({ verb }) => verb === choice.verb);
    const { person } = subjects.find(({ pt }) => pt === choice.subject);
    const [article, ...others] = nouns[choice.noun][choice.adjective].split(" ");
    const object = [contractions[`${preposition} ${article}`] ?? `${preposition} ${article}`.trim(), ...others];
    const words = [choice.subject, choice.negation, forms[choice.tense][person], ...object, choice.mark];
    return words.filter(Boolean).join(" ");
  }

  // What can be chosen in each menu, beside what is chosen in the others.
  function menus({ subjects, verbs, nouns }, choice) {
    const verb = verbs.find(({ verb }) => verb === choice.verb);
    const { person } = subjects.find(({ pt }) => pt === choice.subject);
    const same = (names) => names.map((name) => [name, name]);
    const conjugated = verbs.flatMap(({ verb, preposition, forms }) =>
      Object.entries(forms).map(([tense, form]) => [`${verb} ${tense}`, form[person], `${verb} ${preposition}`.trim()]));
    return {
      subject: same(subjects.map(({ pt }) => pt)),
      negation: [["", "—"], ["não", "não"]],
      verb: conjugated,
      noun: verb.nouns.map((noun) => [noun, noun]),
      adjective: Object.entries(nouns[choice.noun]).map(([key, phrase]) => [key, key ? phrase.split(" ").at(-1) : "—"]),
      mark: same([0, 3].includes(person) ? ["."] : [".", "?"]), // one does not ask about oneself
    };
  }

  // The chapters that explain what is seen, in the order in which a sentence meets them.
  const CHAPTERS = [
    ["12-text", "words into tokens"], ["02-embedding", "tokens into vectors"], ["03-attention", "attention"], ["04-layers", "layers"],
    ["05-model", "the whole model"], ["08-decoding", "one word after the other"], ["13-translation", "its training"],
  ];
  const link = (page, words) => html("a", { href: `${page}.html` }, words);

  const MENUS = {
    subject: "subject", negation: "negation", verb: "verb", noun: "object", adjective: "adjective", mark: "mark at the end",
  };

  function build(model, record) {
    const vocabulary = new live.Vocabulary(record.vocabulary);
    const { bos_id, eos_id } = model.config;
    const moving = () => !matchMedia("(prefers-reduced-motion: reduce)").matches;
    const choice = {
      subject: "a menina", negation: "", verb: "gostar", tense: "present", noun: "gato", adjective: "preto", mark: ".",
    };
    const read = new Set(record.read.split(" ")); // the Portuguese words of its training
    let timer, found, pinned;

    const selects = {};
    for (const [name, label] of Object.entries(MENUS)) {
      selects[name] = html("select", { "aria-label": label, lang: "pt", change: () => choose(name, selects[name].value) });
    }
    const field = live.text_field({ class: "live-text", lang: "pt" }, LONGEST, () => translate(false));
    const { input } = field;
    const composer = html("div", { class: "live-row", role: "group", "aria-label": "Compose a sentence in Portuguese" },
      ...Object.values(selects), html("button", { type: "button", class: "live-button", click: surprise }, "Another sentence"));
    const aside = html("p", { class: "live-aside-words" });
    const given = html("p", { class: "live-words live-given", lang: "pt" });
    const made = html("p", { class: "live-words live-made", lang: "en" });
    const drawing = svg("svg", { class: "live-links", "aria-hidden": "true" });
    const pair = html("div", { class: "live-pair" }, drawing, html("span", { class: "live-label" }, "Portuguese"), given,
      made, html("span", { class: "live-label" }, "English"));
    const said = html("p", { class: "live-said" });
    const spoken = html("output", { class: "live-spoken" });
    const next = html("div", { class: "live-next" });

    // The sentence -----------------------------------------------------------------------------------

    function choose(name, value) {
      if (name === "verb") [choice.verb, choice.tense] = value.split(" ");
      else choice[name] = value;
      for (const [other, options] of [["noun", "noun"], ["adjective", "adjective"], ["mark", "mark"]]) {
        const values = menus(record.words, choice)[options].map(([value]) => value);
        if (!values.includes(choice[other])) choice[other] = values[0];
      }
      show_menus();
    }

    function show_menus() {
      for (const [name, options] of Object.entries(menus(record.words, choice))) {
        const chosen = name === "verb" ? `${choice.verb} ${choice.tense}` : choice[name];
        const groups = new Map();
        for (const [value, text, group] of options) {
          if (!groups.has(group)) groups.set(group, []);
          groups.get(group).push(html("option", { value, selected: value === chosen }, text));
        }
        selects[name].replaceChildren(...[...groups].flatMap(([group, entries]) =>
          group ? [html("optgroup", { label: group }, ...entries)] : entries));
      }
      input.value = compose(record.words, choice);
      field.check();
      translate(moving());
    }

    function surprise() {
      const { subjects, verbs, nouns } = record.words;
      const verb = pick(verbs);
      const noun = pick(verb.nouns);
      const { pt: subject, person } = pick(subjects);
      Object.assign(choice, {
        subject, noun, verb: verb.verb, tense: pick(Object.keys(verb.forms)), adjective: pick(Object.keys(nouns[noun])),
        negation: pick(["", "", "não"]), mark: [0, 3].includes(person) ? "." : pick([".", ".", "?"]),
      });
      show_menus();
    }

    // The translation --------------------------------------------------------------------------------

    // The mean of the last layer's heads: a source word receives what its tokens receive, a target word gives the
    // mean of what its tokens give.
    function between_words(sources, targets, src, tokens) {
      const heads = model.attention_maps(src, [bos_id, ...tokens.slice(0, -1)]).cross.at(-1);
      const weight = (t, s) => heads.reduce((sum, weights) => sum + weights[t][s], 0) / heads.length;
      return targets.map((target) => sources.map((source) =>
        target.places.reduce((sum, t) => sum + source.places.reduce((part, s) => part + weight(t, s), 0), 0) / target.places.length));
    }

    function read_words(text) {
      let start = 0;
      const words = live.tokenize(text).split(" ").filter(Boolean).map((word) => ({ text: word, ids: vocabulary.encode(word) }));
      words.push({ text: "end", ids: [eos_id] });
      for (const word of words) word.places = word.ids.map(() => start++);
      return words;
    }

    function translate(slowly) {
      clearTimeout(timer);
      pinned = undefined;
      const own = input.value !== compose(record.words, choice);
      composer.classList.toggle("live-aside", own);
      aside.replaceChildren(own ? "This is a sentence of your own; the menus bring theirs back." : "");
      if (!field.fits) return clear();
      const sources = read_words(input.value);
      const src = sources.flatMap(({ ids }) => ids);
      const { tokens, probabilities } = sources.length > 1 ? live.greedy_search(model, src, 2 * src.length + 10) : { tokens: [eos_id], probabilities: [] };
      const targets = vocabulary.words(tokens).filter(({ text }) => text !== "</s>");
      for (const word of targets) word.sure = word.places.reduce((product, t) => product * probabilities[t][tokens[t]], 1);
      found = { weights: between_words(sources, targets, src, tokens), sources, targets, src, tokens, shown: slowly ? 0 : targets.length };
      show_words();
      spoken.replaceChildren(targets.map(({ text }) => text).join(" "));
      if (slowly) grow();
      else light();
    }

    // Without a sentence that can be read, nothing is left of the one before.
    function clear() {
      found = undefined;
      for (const part of [given, made, drawing, said, next, spoken]) part.replaceChildren();
    }

    // The words ------------------------------------------------------------------------------------

    // A word that lights up under the pointer or with the keyboard, and stays so after a click.
    const word_button = (word, state, description, parts) => html("button", {
      type: "button", class: `live-word ${state} ${GLUED.test(word.text) ? "live-glued" : ""}`, "aria-description": description,
      pointerenter: () => light(word), focus: () => light(word), pointerleave: () => light(), blur: () => light(),
      click: () => { pinned = pinned === word ? undefined : word; light(word); },
    }, ...parts);

    const lacks_letter = ({ ids }) => ids.includes(model.config.unk_id ?? 1);
    const is_new = ({ text, ids }) => ids[0] !== eos_id && !read.has(text);

    function show_words() {
      const { sources, targets } = found;
      given.replaceChildren(...sources.map((word) => {
        const ends = word.ids[0] === eos_id;
        const letters = vocabulary.cut(word.text).map((piece) => (vocabulary.numbers.has(piece) ? piece : html("mark", {}, piece)));
        const remark = lacks_letter(word) ? "has an unknown letter" : is_new(word) ? "never read before" : undefined;
        return word_button(word, `${ends ? "live-end" : ""} ${is_new(word) ? "live-unsure" : ""}`, remark, ends ? ["end"] : letters);
      }));
      made.replaceChildren(...targets.map((word, t) =>
        word_button(word, word.sure < SURE ? "live-unsure" : "", `${percent(word.sure)} sure; ${looked_at(t)}`, [word.text])));
      arrange();
    }

    // Side by side where both sentences fit into a line each; else word below word, so that no line runs through one.
    function arrange() {
      pair.classList.remove("live-upright");
      const wraps = (words) => words.children.length && words.lastChild.offsetTop > words.firstChild.offsetTop + 8;
      pair.classList.toggle("live-upright", Boolean(wraps(given) || wraps(made)));
    }

    function grow() {
      light(found.targets[found.shown++]);
      timer = setTimeout(() => (found.shown < found.targets.length ? grow() : light()), STEP);
    }

    const looked_at = (t) => found.weights[t].map((weight, s) => [weight, found.sources[s].text])
      .filter(([weight]) => weight > 0.05).sort(([a], [b]) => b - a).map(([weight, text]) => `${text} ${percent(weight)}`).join(", ");

    // Lights up a word and what it attended to, or by what it was attended to; without one, all lines are there, faintly.
    function light(word = pinned) {
      if (!found) return;
      const { weights, shown, sources, targets } = found;
      const [t, s] = [targets.indexOf(word), sources.indexOf(word)];
      const share = (i, j) => (i === t || j === s ? weights[i][j] : 0);
      [...made.children].forEach((button, i) => {
        button.classList.toggle("live-hidden", i >= shown);
        button.classList.toggle("live-lit", i === t);
        button.style.setProperty("--weight", s < 0 ? 0 : share(i, s));
      });
      [...given.children].forEach((button, j) => {
        button.classList.toggle("live-lit", j === s);
        button.style.setProperty("--weight", t < 0 ? 0 : share(t, j));
      });
      said.replaceChildren(...(t >= 0 ? about_target(t) : s >= 0 ? about_source(word) : hint()));
      draw_links((i, j) => !word || i === t || j === s, word ? 1 : 0.45);
      show_candidates(t >= 0 ? t : least_sure());
    }

    const about_target = (t) => [html("b", {}, found.targets[t].text), ` attended to ${looked_at(t)} (`, link("03-attention", "Chapter 3"),
      `). The decoder gave the word ${percent(found.targets[t].sure)} (`, link("08-decoding", "Chapter 8"), ")."];

    function about_source({ text, ids }) {
      const tokens = ids.length === 1 ? "one token" : `${ids.length} tokens, ${ids.map((id) => vocabulary.shown(id)).join(" ")}`;
      return [html("b", {}, text), ` is read as ${tokens} (`, link("12-text", "Chapter 12"), `), each a vector of ${model.config.d_model} numbers with its position (`,
        link("02-embedding", "Chapter 2"), "), and mixed with the other words by the encoder (", link("05-model", "Chapter 5"), ")."];
    }

    function hint() {
      const quoted = (words) => words.map(({ text }) => `“${text}”`).join(", ");
      const lacking = found.sources.filter(lacks_letter);
      const fresh = found.sources.filter((word) => is_new(word) && !lacks_letter(word));
      const unsure = found.targets.some(({ sure }) => sure < SURE);
      const remarks = [
        lacking.length && `The vocabulary lacks a letter of ${quoted(lacking)}.`,
        fresh.length && `The model has never read ${quoted(fresh)}.`,
        unsure && "Of pale words with a dashed edge it is not sure.",
      ].filter(Boolean);
      return [remarks.join(" ") || "Point at a word, tap it, or reach it with the tab key: what did the model look at as it wrote it?"];
    }

    const least_sure = () => found.targets.reduce((least, { sure }, t) => (least < 0 || sure < found.targets[least].sure ? t : least), -1);

    // What else the decoder might have written in the place of a word.
    function show_candidates(t) {
      const word = found.targets[t];
      if (!word) return next.replaceChildren();
      found.memory ??= model.encode(found.src);
      const before = [bos_id, ...found.tokens.slice(0, word.places[0])];
      word.candidates ??= live.next_words(model, found.memory, before, CANDIDATES, (id) => id === eos_id || vocabulary.begins(id));
      const name = (tokens) => (tokens.length === 1 ? vocabulary.shown(tokens[0]) : (vocabulary.begins(tokens[0]) ? "" : "-") + vocabulary.words(tokens)[0].text);
      const title = t ? `after “… ${found.targets[t - 1].text}”` : "at the beginning";
      next.replaceChildren(html("p", { class: "live-label" }, `Candidates ${title}`), ...word.candidates.map(({ tokens, probability }) => {
        const bar = html("span", { class: "live-next-bar" });
        bar.style.setProperty("--weight", probability);
        return html("p", { class: "live-candidate" }, html("span", { lang: "en" }, name(tokens)), bar, html("span", {}, percent(probability)));
      }));
    }

    function draw_links(wanted, strength) {
      const frame = drawing.getBoundingClientRect();
      const upright = pair.classList.contains("live-upright");
      const box = (word) => {
        const { left, right, top, bottom } = word.getBoundingClientRect();
        return { left: left - frame.left, right: right - frame.left, top: top - frame.top, bottom: bottom - frame.top, x: (left + right) / 2 - frame.left, y: (top + bottom) / 2 - frame.top };
      };
      const path = (from, to) => {
        if (upright) return `M${to.right} ${to.y}C${(to.right + from.left) / 2} ${to.y} ${(to.right + from.left) / 2} ${from.y} ${from.left} ${from.y}`;
        const bend = (from.top + to.bottom) / 2;
        return `M${from.x} ${from.top}C${from.x} ${bend} ${to.x} ${bend} ${to.x} ${to.bottom}`;
      };
      const [above, below] = [given, made].map((words) => [...words.children].map(box));
      drawing.replaceChildren(...found.weights.slice(0, found.shown).flatMap((row, t) => row.map((weight, s) => {
        if (weight < 0.05 || !wanted(t, s)) return "";
        return svg("path", { d: path(below[t], above[s]), "stroke-width": 1 + 3 * weight, "stroke-opacity": (strength * weight).toFixed(2) });
      })));
    }

    let width = 0;
    new ResizeObserver(() => requestAnimationFrame(() => {
      if (pair.clientWidth !== width && found) arrange();
      width = pair.clientWidth;
      light();
    })).observe(pair);
    show_menus();
    const chapters = CHAPTERS.flatMap(([page, words]) => [" → ", link(page, words)]).slice(1);
    return html("div", { class: "live-panel live-phrases" },
      composer, html("div", { class: "live-row live-own-words" }, html("label", { class: "live-typed" }, "or type ", input), aside), field.note, pair,
      html("div", { class: "live-halves" }, next, said), spoken,
      html("nav", { class: "live-chapters", "aria-label": "The chapters behind the picture" }, ...chapters));
  }

  Object.assign(live, { compose });
  live.mount("phrases", build);
}
