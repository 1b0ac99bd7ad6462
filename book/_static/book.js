// What a page does beyond the theme. Without it every page is whole: nothing is folded that could not be unfolded.
"use strict";

(() => {
  const TALL = 40; // lines of an exported cell before the rest is folded
  const MIN_DOCSTRING = 4; // lines
  const SMALLEST = 0.845; // part of its size to which an equation may shrink
  const FONTS = ['1em "Source Sans 3"', 'italic 1em "Source Sans 3"', '1em "Source Code Pro"'];
  const PATIENCE = 1000; // ms without words

  // Words appear with their fonts; after a moment they appear without, and stay so on this page: a line that breaks anew
  // moves what stands below it.
  const page = document.documentElement.classList;
  page.add("before-fonts");
  const late = new Promise(resolve => setTimeout(resolve, PATIENCE, false));
  const fonts = Promise.allSettled(FONTS.map(font => document.fonts.load(font))).then(() => true);
  Promise.race([late, fonts]).then(inTime => {
    page.remove("before-fonts");
    page.toggle("without-fonts", !inTime);
  });

  function button(text, open) {
    const element = Object.assign(document.createElement("button"), { type: "button", className: "unfold", textContent: text });
    element.setAttribute("aria-expanded", "false");
    element.addEventListener("click", () => {
      const expanded = element.getAttribute("aria-expanded") !== "true";
      element.setAttribute("aria-expanded", expanded);
      open(expanded);
    });
    return element;
  }

  // A docstring of the package shows its first line; what follows is one click away, and is copied all the same.
  function foldDocstrings(pre) {
    for (const first of pre.querySelectorAll(".sd")) {
      if (first.closest(".docstring-rest") || !/^[rbuf]*("""|''')/i.test(first.textContent)) continue;
      const rest = document.createElement("span");
      rest.className = "docstring-rest";
      // A long line is a block, which holds the end of its line.
      const block = first.closest(".line");
      const start = block || first;
      // Pygments writes a docstring as one span or, a line at a time, as several with the line ends between them.
      for (let next = start.nextSibling; next; next = start.nextSibling) {
        const isString = next.nodeType === Node.ELEMENT_NODE && next.classList.contains("sd");
        if (!isString && next.textContent.trim()) break;
        if (!isString && !next.nextSibling?.classList?.contains("sd")) break;
        rest.append(next);
      }
      const lines = rest.textContent.split("\n").length - (block ? 0 : 1);
      if (lines < MIN_DOCSTRING) {
        start.after(...rest.childNodes);
        continue;
      }
      // The button has a line of its own, which is not copied.
      const indent = Math.min(...rest.textContent.split("\n").filter(line => line.trim()).map(line => line.search(/\S/)));
      const uncopied = textContent => Object.assign(document.createElement("span"), { className: "nocopy", textContent });
      const line = uncopied(`${block ? "" : "\n"}${" ".repeat(indent)}`);
      line.append(button(`⋯ ${lines} lines`, open => rest.classList.toggle("open", open)));
      if (block) rest.prepend(uncopied("\n"));
      start.after(line, rest);
    }
  }

  function foldTall(cell) {
    const pre = cell.querySelector("pre");
    const hidden = [...pre.querySelectorAll(".docstring-rest")].reduce((sum, rest) => sum + rest.textContent.split("\n").length - 1, 0);
    const lines = pre.textContent.trimEnd().split("\n").length;
    if (lines - hidden <= TALL) return;
    const block = pre.closest(".highlight");
    block.classList.add("tall");
    const more = button(`Show all ${lines} lines`, open => {
      block.classList.toggle("open", open);
      more.textContent = open ? "Show less" : `Show all ${lines} lines`;
    });
    more.classList.add("unfold-all");
    block.after(more);
  }

  // What scrolls sideways fades at the edge where there is more, and is a tab stop.
  function cue(box) {
    const update = () => {
      box.classList.toggle("more-left", box.scrollLeft > 1);
      box.classList.toggle("more-right", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
      const scrolls = box.classList.toggle("scrolls", box.scrollWidth > box.clientWidth + 1);
      if (scrolls) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    };
    box.addEventListener("scroll", update, { passive: true });
    const sizes = new ResizeObserver(update);
    [box, ...box.children].forEach(part => sizes.observe(part));
  }

  // An equation that is a little too wide is set smaller; one that is far too wide keeps its size and scrolls.
  function fit(equation) {
    const formulas = [...equation.querySelectorAll("mjx-container")];
    let width = 0;
    new ResizeObserver(() => {
      if (equation.clientWidth === width) return;
      width = equation.clientWidth;
      equation.style.fontSize = "";
      const ratio = Math.min(...formulas.map(formula => formula.clientWidth / formula.scrollWidth));
      if (ratio >= SMALLEST && ratio < 1) equation.style.fontSize = `${98 * ratio}%`;
    }).observe(equation);
    formulas.forEach(cue);
  }

  // A formula in the text that is wider than a phone gets a line of its own.
  function isolate(formula) {
    if (formula.offsetWidth <= formula.closest("p, li, td, dd, figcaption")?.clientWidth) return;
    formula.classList.add("too-wide");
    cue(formula);
  }

  // Rows of a long table in the order of a column, and in the other order the second time; a rule parts nothing then.
  function sortable(table) {
    const [body] = table.tBodies, heads = [...table.tHead?.rows[0].cells ?? []];
    const value = (row, place) => {
      const raised = (_, minus, digits) => `e${minus && "-"}${[...digits].map(digit => "⁰¹²³⁴⁵⁶⁷⁸⁹".indexOf(digit)).join("")}`;
      const plain = row.cells[place].textContent.trim().replaceAll(",", "").replace("−", "-");
      const text = plain.replace(/·10(⁻?)([⁰¹²³⁴-⁹]+)/, raised);
      return Number.isNaN(parseFloat(text)) ? text : parseFloat(text);
    };
    heads.forEach((head, number) => {
      const place = heads.slice(0, number).reduce((sum, one) => sum + one.colSpan, 0);
      if (head.colSpan > 1 || !head.textContent.trim()) return;
      const sort = Object.assign(document.createElement("button"), { type: "button" });
      sort.append(...head.childNodes);
      head.append(sort);
      sort.addEventListener("click", () => {
        const down = head.ariaSort === "ascending" ? -1 : 1;
        for (const other of heads) other.ariaSort = null;
        head.ariaSort = down > 0 ? "ascending" : "descending";
        const order = ([, a], [, b]) => (typeof a === typeof b && a !== b ? (a < b ? -down : down) : 0);
        const rows = [...body.rows].map(row => [row, value(row, place)]).sort(order);
        rows.forEach(([row]) => row.classList.remove("ruled"));
        body.append(...rows.map(([row]) => row));
      });
    });
  }

  // What can wait is done a little at a time, so that the page answers in between. Safari knows no idle time.
  function later(elements, work) {
    const waiting = [...elements];
    const slice = () => {
      waiting.splice(0, 20).forEach(work);
      if (waiting.length) (window.requestIdleCallback ?? setTimeout)(slice);
      else document.documentElement.dataset.settled = "";
    };
    slice();
  }

  // Reload and Back lead to the very line, which equations that are fitted only now have moved.
  const blocks = () => [...document.querySelectorAll("article :is(p, pre, h1, h2, h3, h4, li)")];
  const KEPT = `place:${location.pathname}`;
  function remember() {
    const places = blocks().map(block => block.getBoundingClientRect().top);
    const block = places.findIndex(top => top > 0);
    try {
      sessionStorage.setItem(KEPT, JSON.stringify([block, places[block], scrollY]));
    } catch { /* refused: then the browser's own guess stands */ }
  }
  function goBack() {
    const [{ type }] = performance.getEntriesByType("navigation");
    let kept = [];
    try {
      kept = JSON.parse(sessionStorage.getItem(KEPT)) ?? [];
    } catch { /* refused, or not ours */ }
    const [block, top, y] = kept, place = blocks()[block];
    if (!place || !["reload", "back_forward"].includes(type) || Math.abs(scrollY - y) > innerHeight) return;
    scrollBy({ top: place.getBoundingClientRect().top - top, behavior: "instant" });
  }

  const frames = count => new Promise(done => { (function next() { if (count--) requestAnimationFrame(next); else done(); })(); });
  addEventListener("pagehide", remember);
  addEventListener("load", () => document.fonts.ready.then(() => frames(4)).then(goBack));

  document.addEventListener("placed", ({ target }) => target.querySelectorAll(".live-scroll").forEach(cue));
  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll(".cell-exported").forEach(cell => {
      cell.querySelectorAll("pre").forEach(foldDocstrings);
      foldTall(cell);
    });
    document.querySelectorAll("pre, .picture, .live-still, .pst-scrollable-table-container").forEach(cue);
    document.querySelectorAll("table.sortable").forEach(sortable);
    document.fonts.ready.then(() => {
      document.querySelectorAll("div.math").forEach(fit);
      later(document.querySelectorAll("span.math mjx-container"), isolate);
    });
  });

  // The index of the search comes when a reader reaches for it; the search page has it already.
  function fetchSearch(event) {
    if (!event.target.matches("input[name=q]")) return;
    document.removeEventListener("focusin", fetchSearch);
    if (document.getElementById("search-results")) return;
    for (const name of ["sections", "search"]) {
      const src = `${document.documentElement.dataset.content_root}_static/${name}.js`;
      document.head.append(Object.assign(document.createElement("script"), { src, async: false }));
    }
  }
  document.addEventListener("focusin", fetchSearch);

  // On paper nothing can be unfolded, and the ground is white.
  const root = document.documentElement;
  let theme;
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach(details => { details.open = true; });
    theme = root.dataset.theme;
    root.dataset.theme = "light";
  });
  window.addEventListener("afterprint", () => { root.dataset.theme = theme; });
})();
