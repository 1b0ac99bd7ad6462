// Search by section, while one types: in the box that each page opens, and on the search page.
// `SECTIONS` and `CONCEPTS` come from book/_ext/lookup.py.
"use strict";

(() => {
  const SHOWN = 40; // results on the search page
  const FEW = 8; // in the box
  const SNIPPET = 190; // characters
  const WAIT = 120; // milliseconds after a key
  const KINDS = { section: 1, term: 0.6, api: 0.12 }; // a section answers before a term or a name
  const ASIDE = /^(?:Exercise|Further reading|What this)/;
  const NEEDLESS = new Set("a an and are do does how i in is it me my of on the to what when why with you your".split(" "));

  // Text to compare: without capitals, accents and hyphens, of the same length.
  const plain = text => text.toLowerCase().replace(/[\u00c0-\u024f]/g, sign => sign.normalize("NFD")[0])
    .replace(/[-\u2010-\u2013]/g, " ").replaceAll("’", "'");
  const isLetter = sign => sign !== undefined && /[\p{L}\d]/u.test(sign);
  const escape = text => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

  // How often a phrase stands in a text, at the beginning of a word, and a short one as a whole word.
  function count(text, phrase, most = 8) {
    let found = 0;
    for (let at = text.indexOf(phrase); at >= 0 && found < most; at = text.indexOf(phrase, at + 1)) {
      const whole = phrase.length > 3 || !isLetter(text[at + phrase.length]) || text[at + phrase.length] === "s";
      if (!isLetter(text[at - 1]) && whole) found += 1;
    }
    return found;
  }

  // The index ------------------------------------------------------------------------------------------

  let index = null;

  function readIndex() {
    const vocabulary = new Map();
    const learn = (text, weight) => {
      for (const word of text.match(/[\p{L}\d]{3,}/gu) ?? []) vocabulary.set(word, (vocabulary.get(word) ?? 0) + weight);
    };
    const sections = SECTIONS.map(([kind, address, title, page, words, code]) => {
      const section = { kind, address, title, page, words, plain: [title, page, words].map(plain), code };
      learn(section.plain.join(" "), 1);
      learn(code, 0.01);
      return section;
    });
    const concepts = CONCEPTS.map(([names, places]) => ({ names: names.map(plain), places }));
    concepts.forEach(({ names }) => learn(names.join(" "), 1));
    return { sections, concepts, vocabulary, words: [...vocabulary.keys()] };
  }

  // What is asked ----------------------------------------------------------------------------------------

  // Keys to press to make one word from another, where two exchanged letters are one, and to make its beginning.
  function distances(from, to) {
    let before = [], row = Array.from({ length: to.length + 1 }, (_, j) => j);
    for (let i = 1; i <= from.length; i += 1) {
      const next = [i];
      for (let j = 1; j <= to.length; j += 1) {
        const same = from[i - 1] === to[j - 1];
        next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (same ? 0 : 1));
        if (from[i - 1] === to[j - 2] && from[i - 2] === to[j - 1]) next[j] = Math.min(next[j], before[j - 2] + 1);
      }
      [before, row] = [row, next];
    }
    return [row.at(-1), Math.min(...row)];
  }

  // The word of the book that is nearest to one that it does not have.
  function corrected(word) {
    if (word.length < 4 || /[_.\d]/.test(word) || index.words.some(known => known.startsWith(word))) return word;
    const limit = word.length < 8 ? 1 : 2;
    let best = [limit + 0.7, 0, word];
    for (const known of index.words) {
      if (known.length < word.length - limit || (known[0] !== word[0] && known[0] !== word[1])) continue;
      const [whole, beginning] = distances(word, known);
      const cost = Math.min(whole, beginning + 0.6);
      const often = index.vocabulary.get(known);
      if (cost < best[0] || (cost === best[0] && often > best[1])) best = [cost, often, known];
    }
    return best[2];
  }

  // What a section must hold: for each part of the query the phrases that stand for it, and where the book answers.
  function partsOf(query) {
    const asked = plain(query).split(/[^\p{L}\d_.'²√]+/u).map(word => word.replace(/\.$/, "")).filter(Boolean);
    const words = asked.map(corrected);
    const parts = [];
    let rest = ` ${words.join(" ")} `;
    const names = index.concepts.flatMap(concept => concept.names.map(name => ({ name, concept })))
      .sort((a, b) => b.name.length - a.name.length);
    for (const { name, concept } of names) {
      const place = [` ${name} `, ` ${name}s `].find(text => rest.includes(text));
      if (!place) continue;
      parts.push({ phrases: [name, ...concept.names.filter(other => other !== name)], places: concept.places });
      rest = rest.replace(place, "  ");
    }
    const begun = rest.trim();
    const concept = begun.includes(" ") && names.find(({ name }) => name.startsWith(begun))?.concept;
    if (concept) return { words, corrected: "", parts: [...parts, { phrases: [begun, ...concept.names], places: concept.places }] };
    const left = begun.split(/\s+/).filter(Boolean);
    const telling = left.filter(word => !NEEDLESS.has(word));
    parts.push(...(telling.length || parts.length ? telling : left).map(word => ({ phrases: [word], places: [] })));
    return { words, parts, corrected: words.join(" ") === asked.join(" ") ? "" : words.join(" ") };
  }

  // What is found ----------------------------------------------------------------------------------------

  // How well a section answers a phrase: by its title before its words, by its words before its code.
  function points({ plain: [title, page, words], code }, phrase) {
    const inTitle = count(title, phrase, 1);
    const share = inTitle && title.length < 2 * phrase.length ? 20 : 0;
    return 40 * inTitle + share + 6 * count(page, phrase, 1) + count(words, phrase) + count(code, phrase, 1) / 2;
  }

  // One phrase of a part, or the words of the first of them apart.
  function answer(section, { phrases, places }) {
    let best = Math.max(...phrases.map((phrase, number) => (number ? 0.9 : 1) * points(section, phrase)));
    const words = phrases[0].split(" ");
    if (!best && words.length > 1) {
      const each = words.map(word => points(section, word));
      if (each.every(Boolean)) best = each.reduce((sum, one) => sum + one, 0) / 2 / words.length;
    }
    const place = places.indexOf(section.address);
    return place < 0 ? best : best + 400 - 100 * place;
  }

  function score(section, { words, parts }, query, all) {
    const answers = parts.map(part => answer(section, part));
    const answered = answers.filter(Boolean).length;
    if (!answered || (all && answered < parts.length)) return 0;
    let total = answers.reduce((sum, one) => sum + one, 0) * (answered / parts.length);
    const phrase = words.join(" ");
    if (parts.length > 1) total += 60 * count(section.plain[0], phrase, 1) + 4 * count(section.plain[2], phrase);
    if (ASIDE.test(section.title)) total *= 0.5;
    total *= KINDS[section.kind];
    // Who writes a name as a program does asks for the name.
    const called = plain(query).trim(), isName = section.plain[0] === called || section.plain[0].endsWith(`.${called}`);
    if (section.kind === "api" && isName) total += /[_.]/.test(called) ? 1000 : 8;
    return total;
  }

  function find(query) {
    index ??= readIndex();
    const asked = partsOf(query);
    const ranked = all => index.sections.map(section => [score(section, asked, query, all), section])
      .filter(([points]) => points > 0).sort(([a], [b]) => b - a).map(([, section]) => section);
    const whole = asked.parts.length ? ranked(true) : [];
    const some = whole.length || asked.parts.length < 2 ? [] : ranked(false);
    return { asked, found: whole.length ? whole : some, isWhole: !some.length };
  }

  // What is shown ----------------------------------------------------------------------------------------

  const phrasesOf = asked => {
    const phrases = asked.parts.flatMap(part => part.phrases);
    return phrases.length ? phrases.sort((a, b) => b.length - a.length) : [];
  };
  const pattern = phrases => phrases.map(phrase => {
    const end = phrase.length > 3 ? "" : "(?![\\p{L}\\d])";
    return `(?<![\\p{L}\\d])${escape(phrase).replaceAll(" ", "[\\s-]")}${end}`;
  }).join("|");

  // The sentence in which the first phrase stands, and what follows, as far as there is room.
  function snippet({ words: text }, phrases) {
    const found = text.search(new RegExp(pattern(phrases), "iu"));
    let start = Math.max(...[". ", "? ", "! "].map(end => text.lastIndexOf(end, Math.max(found, 0)))) + 2;
    if (found < 0 || start === 1) start = 0;
    if (found - start > SNIPPET - 60) start = text.indexOf(" ", found - 60) + 1;
    const isSentence = start === 0 || /[.?!] $/.test(text.slice(0, start));
    const end = start + SNIPPET < text.length ? text.lastIndexOf(" ", start + SNIPPET) : text.length;
    return (isSentence ? "" : "… ") + text.slice(start, end) + (end < text.length ? " …" : "");
  }

  // `text` as nodes, with the phrases marked.
  function marked(text, phrases) {
    return text.split(new RegExp(`(${pattern(phrases)})`, "giu")).map((piece, number) => {
      if (number % 2 === 0) return piece;
      return Object.assign(document.createElement("mark"), { textContent: piece });
    });
  }

  function result(section, phrases) {
    const [path, anchor] = section.address.split("#");
    const item = document.createElement("li");
    const link = document.createElement("a");
    const held = phrases.filter(phrase => section.plain.some(text => count(text, phrase, 1))).join(" ");
    const highlight = held ? `?highlight=${encodeURIComponent(held)}` : "";
    link.href = `${document.documentElement.dataset.content_root}${path}${highlight}${anchor ? `#${anchor}` : ""}`;
    link.append(...marked(section.title, phrases));
    item.append(link);
    if (section.title !== section.page) {
      item.append(" ", Object.assign(document.createElement("small"), { textContent: section.page }));
    }
    const text = document.createElement("p");
    text.append(...marked(snippet(section, phrases), phrases));
    if (text.textContent) item.append(text);
    return item;
  }

  function summary(query, { asked, found, isWhole }, shown) {
    const number = found.length;
    const of = asked.corrected ? `“${asked.corrected}”, for “${query}”` : `“${query}”`;
    if (!isWhole) return `No section holds all of ${of}. The nearest ${Math.min(number, shown)}:`;
    if (number > shown) return `${number} sections hold ${of}. The best ${shown}:`;
    return `${number || "No"} section${number === 1 ? " holds" : "s hold"} ${of}.`;
  }

  function show(query, box, shown) {
    const status = box.querySelector("[role=status]"), list = box.querySelector("ul");
    if (query.length < 2) {
      status.textContent = "";
      list.replaceChildren();
      return;
    }
    const answer = find(query), phrases = phrasesOf(answer.asked);
    status.textContent = summary(query, answer, shown);
    list.replaceChildren(...answer.found.slice(0, shown).map(section => result(section, phrases)));
  }

  // From the field to the results and back by the arrow keys.
  function walk(event, input, box) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const stops = [input, ...box.querySelectorAll("li > a")];
    const here = stops.indexOf(document.activeElement);
    if (!step || here < 0) return;
    event.preventDefault();
    stops[Math.min(Math.max(here + step, 0), stops.length - 1)].focus();
  }

  function attach(form) {
    const input = form.querySelector("input[name=q]"), dialog = form.closest("dialog");
    let box = document.getElementById("search-results");
    if (dialog) {
      box = Object.assign(document.createElement("section"), { className: "search-box" });
      box.setAttribute("aria-label", "Search results");
      form.after(box);
    }
    const status = document.createElement("p"), list = Object.assign(document.createElement("ul"), { className: "search" });
    status.setAttribute("role", "status");
    box.replaceChildren(status, list);
    let timer = 0;
    const update = () => show(input.value.trim().replace(/\s+/g, " "), box, dialog ? FEW : SHOWN);
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        update();
        if (!dialog) history.replaceState(null, "", `?q=${encodeURIComponent(input.value)}`);
      }, WAIT);
    });
    for (const part of [input, box]) part.addEventListener("keydown", event => walk(event, input, box));
    if (!dialog) input.value = new URLSearchParams(location.search).get("q") ?? "";
    update();
  }

  document.querySelectorAll("form.bd-search").forEach(attach);
})();
