// Search by section. `SECTIONS` comes from book/_ext/lookup.py: address, title, title of the page, words, code.
"use strict";

(() => {
  const SHOWN = 40;
  const SNIPPET = 180; // characters

  const escape = text => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const startsWord = term => new RegExp(`(?<![\\p{L}\\d])${escape(term)}`, "giu");

  // How well a section answers: its title before its words, its words before its code, the phrase before its parts.
  function score([, title, page, words, code], phrase, terms) {
    const count = (text, term) => (text.match(startsWord(term)) || []).length;
    let total = 0;
    for (const term of terms) {
      const found = 40 * Math.min(count(title, term), 1) + 6 * Math.min(count(page, term), 1)
        + Math.min(count(words, term), 8) + Math.min(count(code, term), 3) / 2;
      if (!found) return 0;
      total += found;
    }
    if (terms.length > 1) total += 60 * count(title, phrase) + 4 * Math.min(count(words, phrase), 8);
    if (title.toLowerCase() === phrase || title.toLowerCase().endsWith(`.${phrase}`)) total += 200;
    return total;
  }

  // The piece of the text around the first match, from the start of a word.
  function snippet([, , , words, code], phrase, terms) {
    const text = [phrase, ...terms].some(term => startsWord(term).test(words)) || !code ? words : code;
    const places = [phrase, ...terms].map(term => text.search(startsWord(term)));
    const place = places.find(found => found >= 0) ?? 0;
    const start = place < 60 ? 0 : text.indexOf(" ", place - 60) + 1;
    const end = start + SNIPPET < text.length ? text.lastIndexOf(" ", start + SNIPPET) : text.length;
    return (start ? "… " : "") + text.slice(start, end) + (end < text.length ? " …" : "");
  }

  // `text` as nodes, with the terms marked.
  function marked(text, terms) {
    const pieces = text.split(new RegExp(`((?<![\\p{L}\\d])(?:${terms.map(escape).join("|")}))`, "giu"));
    return pieces.map((piece, number) => {
      if (number % 2 === 0) return piece;
      const mark = document.createElement("mark");
      mark.textContent = piece;
      return mark;
    });
  }

  function result(section, phrase, terms) {
    const [address, title, page] = section;
    const [path, anchor] = address.split("#");
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = `${path}?highlight=${encodeURIComponent(terms.join(" "))}${anchor ? `#${anchor}` : ""}`;
    link.append(...marked(title, terms));
    item.append(link);
    if (title !== page) item.append(" ", Object.assign(document.createElement("small"), { textContent: page }));
    const text = document.createElement("p");
    text.append(...marked(snippet(section, phrase, terms), terms));
    if (text.textContent) item.append(text);
    return item;
  }

  function search(query) {
    const phrase = query.toLowerCase().trim().replace(/\s+/g, " ");
    const terms = phrase.split(" ").filter(Boolean);
    if (!terms.length) return;
    const found = SECTIONS.map(section => [score(section, phrase, terms), section])
      .filter(([points]) => points > 0).sort(([a], [b]) => b - a);
    const summary = document.createElement("p");
    summary.textContent = found.length > SHOWN
      ? `${found.length} sections hold “${query}”. The best ${SHOWN}:`
      : `${found.length || "No"} section${found.length === 1 ? " holds" : "s hold"} “${query}”.`;
    const list = document.createElement("ul");
    list.className = "search";
    list.append(...found.slice(0, SHOWN).map(([, section]) => result(section, phrase, terms)));
    document.getElementById("search-results").replaceChildren(summary, list);
  }

  const query = new URLSearchParams(location.search).get("q") || "";
  document.querySelectorAll('input[name="q"]').forEach(input => { input.value = query; });
  search(query);
})();
