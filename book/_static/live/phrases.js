// The translator of small Portuguese: sentences from menus or from the keyboard, and what each English word attended to.
"use strict";
{
  const { html, svg, percent } = live;
  const GLUED = /^([.,;:?!]|n't|'(s|re|ve|m|ll|d))$/; // stands without a blank before it
  const STEP = 220; // milliseconds from word to word
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
    let timer, links, hint;

    const selects = {};
    for (const [name, label] of Object.entries(MENUS)) {
      selects[name] = html("select", { "aria-label": label, lang: "pt", change: () => choose(name, selects[name].value) });
    }
    const input = html("input", {
      type: "text", class: "live-text", lang: "pt", maxlength: 90, autocomplete: "off", autocapitalize: "off", spellcheck: "false",
      input: () => translate(false),
    });
    const given = html("p", { class: "live-words live-given", lang: "pt" });
    const made = html("p", { class: "live-words live-made", lang: "en" });
    const drawing = svg("svg", { class: "live-links", "aria-hidden": "true" });
    const said = html("p", { class: "live-said" });
    const spoken = html("output", { class: "live-spoken" });

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
      const sources = read_words(input.value);
      const src = sources.flatMap(({ ids }) => ids);
      const { tokens } = sources.length > 1 ? live.greedy_search(model, src, 2 * src.length + 10) : { tokens: [eos_id] };
      const targets = vocabulary.words(tokens).filter(({ text }) => text !== "</s>");
      const weights = between_words(sources, targets, src, tokens);
      const unknown = sources.filter(({ ids }) => ids.includes(1)).map(({ text }) => text);
      links = { weights, sources, targets, shown: slowly ? 0 : targets.length };

      given.replaceChildren(...sources.map(({ text, ids }) =>
        html("span", { class: `live-word ${ids[0] === eos_id ? "live-end" : ""} ${GLUED.test(text) ? "live-glued" : ""}` }, text)));
      made.replaceChildren(...targets.map(({ text }, t) => html("button", {
        type: "button", class: `live-word ${GLUED.test(text) ? "live-glued" : ""}`,
        "aria-description": looked_at(t),
        pointerenter: () => light(t), focus: () => light(t), click: () => light(t), pointerleave: () => light(), blur: () => light(),
      }, text)));
      hint = unknown.length ? `The vocabulary lacks a letter of “${unknown.join(" ")}”.`
        : "Point at an English word, tap it, or reach it with the tab key: what did the model look at as it wrote it?";
      spoken.replaceChildren(targets.map(({ text }) => text).join(" "));
      if (slowly) grow();
      else light();
    }

    function grow() {
      light(links.shown++);
      timer = setTimeout(() => (links.shown < links.targets.length ? grow() : light()), STEP);
    }

    const looked_at = (t) => links.weights[t].map((weight, s) => [weight, links.sources[s].text])
      .filter(([weight]) => weight > 0.05).sort(([a], [b]) => b - a).map(([weight, text]) => `${text} ${percent(weight)}`).join(", ");

    // Lights up what word t attended to; without a word, all lines are there, faintly.
    function light(t) {
      const { weights, shown, targets } = links;
      [...made.children].forEach((word, i) => {
        word.classList.toggle("live-hidden", i >= shown);
        word.classList.toggle("live-lit", i === t);
      });
      [...given.children].forEach((word, s) => word.style.setProperty("--weight", t === undefined ? 0 : weights[t][s]));
      if (t === undefined) said.replaceChildren(hint);
      else said.replaceChildren(html("b", {}, targets[t].text), ` attended to ${looked_at(t)}.`);
      draw_links(t);
    }

    function draw_links(now) {
      const frame = drawing.getBoundingClientRect();
      const middle = (word) => { const { left, width } = word.getBoundingClientRect(); return left + width / 2 - frame.left; };
      const edge = (word, side) => word.getBoundingClientRect()[side] - frame.top;
      drawing.replaceChildren(...links.weights.slice(0, links.shown).flatMap((row, t) => row.map((weight, s) => {
        if (weight < 0.05 || (now !== undefined && t !== now)) return "";
        const [x1, y1, x2, y2] = [middle(made.children[t]), edge(made.children[t], "top"), middle(given.children[s]), edge(given.children[s], "bottom")];
        const bend = (y1 + y2) / 2;
        const opacity = (now === undefined ? 0.45 : 1) * weight;
        return svg("path", { d: `M${x1} ${y1}C${x1} ${bend} ${x2} ${bend} ${x2} ${y2}`, "stroke-width": 1 + 3 * weight, "stroke-opacity": opacity.toFixed(2) });
      })));
    }

    new ResizeObserver(() => light()).observe(drawing);
    show_menus();
    return html("div", { class: "live-panel live-phrases" },
      html("div", { class: "live-row", role: "group", "aria-label": "Compose a sentence in Portuguese" },
        ...Object.values(selects), html("button", { type: "button", class: "live-button", click: surprise }, "Another sentence")),
      html("label", { class: "live-row live-typed" }, "or type ", input),
      html("div", { class: "live-pair" }, drawing, html("span", { class: "live-label" }, "Portuguese"), given,
        made, html("span", { class: "live-label" }, "English")),
      said, spoken);
  }

  Object.assign(live, { compose });
  live.mount("phrases", build);
}
