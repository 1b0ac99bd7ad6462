// What `book/epub.py` runs in each built page: the article as XHTML, its drawings as SVG files.
// A reading system has no scripts, few fonts and its own colors, so every drawing takes along what it looks like.
async ({ name, names, ids }) => {
  await document.fonts.ready;
  const article = document.querySelector("article.bd-article");
  const SVG = "http://www.w3.org/2000/svg", XHTML = "http://www.w3.org/1999/xhtml", MATH = "http://www.w3.org/1998/Math/MathML";
  const FONT = "'Source Sans 3', 'Source Sans Pro', 'Liberation Sans', Arial, sans-serif";
  const CODE = "'Source Code Pro', 'Liberation Mono', monospace";
  const INHERITED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin",
    "fill-opacity", "stroke-opacity", "font-size", "font-weight", "font-style", "font-family", "text-anchor",
    "dominant-baseline", "visibility", "marker-end", "marker-start", "paint-order", "image-rendering"];
  const OWN = { opacity: "1", display: "", "stop-color": "", "vector-effect": "none" };
  const MATH_WIDTH = 32; // em
  const drawings = [];
  const USELESS = ".headerlink, .copybtn, .nocopy, button, script, noscript, article style:not(svg *), input, .predict-value, .predict-foot, .predict-summary, .toctree-wrapper, "
    + ".viewcode-link, .viewcode-back, .of-narrow, .column-name, svg path:not([d])";
  article.querySelectorAll(USELESS).forEach(element => element.remove());

  // Drawings -------------------------------------------------------------------------------------------

  function dress(original, copy, parent) {
    const style = getComputedStyle(original);
    const said = {};
    copy.removeAttribute("style");
    for (const property of INHERITED) {
      let value = style.getPropertyValue(property);
      if (property === "font-family") value = /mono|code/i.test(value) ? CODE : FONT;
      if (value.startsWith("url(")) value = `url(#${value.match(/#([^"')]+)/)[1]})`;
      said[property] = value;
      copy.removeAttribute(property);
      if (value !== (parent?.[property] ?? "")) copy.style.setProperty(property, value);
    }
    for (const [property, usual] of Object.entries(OWN)) {
      const value = style.getPropertyValue(property);
      if (property === "display" ? value === "none" : property === "stop-color" ? original.tagName === "stop" : value !== usual) {
        copy.style.setProperty(property, value);
      }
    }
    copy.removeAttribute("class");
    [...original.children].forEach((child, number) => dress(child, copy.children[number], said));
  }

  function draw(original) {
    const copy = original.cloneNode(true);
    dress(original, copy, null);
    copy.querySelectorAll("style").forEach(rules => rules.remove());
    const box = original.getBoundingClientRect();
    const view = original.viewBox.baseVal;
    const [width, height] = view?.width ? [view.width, view.height] : [box.width, box.height];
    if (!copy.getAttribute("viewBox")) copy.setAttribute("viewBox", `0 0 ${width} ${height}`);
    for (const attribute of ["role", "aria-label", "tabindex"]) copy.removeAttribute(attribute);
    copy.setAttribute("width", Math.round(width));
    copy.setAttribute("height", Math.round(height));
    copy.style.removeProperty("visibility");
    const ground = document.createElementNS(SVG, "rect");
    for (const [key, value] of Object.entries({ x: view?.x ?? 0, y: view?.y ?? 0, width, height, fill: "#fff" })) ground.setAttribute(key, value);
    copy.prepend(ground);
    const title = document.createElementNS(SVG, "title");
    title.textContent = original.getAttribute("aria-label") ?? "";
    if (title.textContent) copy.prepend(title);
    const file = `images/${name}-${drawings.length + 1}.svg`;
    drawings.push([file, new XMLSerializer().serializeToString(copy)]);
    const image = document.createElementNS(XHTML, "img");
    image.setAttribute("src", file);
    image.setAttribute("alt", original.getAttribute("aria-label") ?? "");
    image.style.width = `${Math.round(box.width)}px`;
    return image;
  }

  document.querySelectorAll("article svg").forEach(svg => {
    if (svg.parentElement.closest("svg")) return;
    if (svg.getBoundingClientRect().width) svg.replaceWith(draw(svg));
    else svg.remove();
  });

  // Formulas: the MathML that MathJax wrote for screen readers ------------------------------------------

  document.querySelectorAll("mjx-container").forEach(container => {
    const math = container.querySelector("mjx-assistive-mml math");
    container.replaceWith(math);
  });
  // TeX sets a function's name apart from what is beside it, unless that is in parentheses; MathML has to be told.
  const isApart = element => element && !/^(mo|mspace)$/.test(element.localName) && !element.textContent.startsWith("(");
  const space = () => {
    const found = document.createElementNS(MATH, "mspace");
    found.setAttribute("width", "0.167em");
    return found;
  };
  document.querySelectorAll("article math mo").forEach(mark => {
    if (mark.textContent !== "\u2061") return;
    const name = mark.previousElementSibling;
    if (isApart(mark.nextElementSibling)) mark.after(space());
    if (isApart(name?.previousElementSibling)) name.before(space());
  });
  // A formula that a narrow screen would cut is smaller.
  document.querySelectorAll("article div.math").forEach(box => {
    const width = box.querySelector("math")?.getBoundingClientRect().width ?? 0;
    box.classList.toggle("wide", width > MATH_WIDTH * parseFloat(getComputedStyle(box).fontSize));
  });
  document.querySelectorAll("article math *, article math").forEach(element => {
    for (const { name } of [...element.attributes]) if (name.startsWith("data-") || name === "class") element.removeAttribute(name);
  });

  // The article ------------------------------------------------------------------------------------------

  const rename = (element, tag, className) => {
    const other = document.createElement(tag);
    if (element.id) other.id = element.id;
    other.className = className ?? element.className;
    other.append(...element.childNodes);
    element.replaceWith(other);
    return other;
  };
  article.querySelectorAll("details").forEach(details => {
    const summary = details.querySelector("summary");
    const label = summary.querySelector(".collapsed")?.textContent ?? summary.textContent;
    if (label === "Code of the figure") return details.remove();
    summary.replaceChildren(label);
    rename(summary, "p", "folded-title");
    return rename(details, "div", "folded");
  });
  article.querySelectorAll("a").forEach(link => {
    if (!link.hasAttribute("href")) return;
    const url = new URL(link.href, document.baseURI);
    const target = url.pathname.match(/\/book\/(?:[^/]+\/)?([^/]+)\.html$/)?.[1];
    if (/^https?:/.test(url.protocol)) return;
    if (url.protocol !== "file:" || !names.includes(target)) return link.replaceWith(...link.childNodes);
    const anchor = decodeURIComponent(url.hash.slice(1));
    const known = anchor && ids[target].includes(anchor);
    link.setAttribute("href", `${target}.xhtml${known ? `#${encodeURI(anchor)}` : ""}`);
  });
  article.querySelectorAll("*").forEach(element => {
    if (element.namespaceURI !== XHTML) return;
    for (const { name: attribute } of [...element.attributes]) {
      const kept = ["id", "class", "href", "src", "alt", "colspan", "rowspan", "scope", "start"].includes(attribute)
        || (attribute === "style" && element.tagName === "IMG");
      if (!kept) element.removeAttribute(attribute);
    }
    if (element.getAttribute("class") === "") element.removeAttribute("class");
  });
  // Only a figure holds its caption as a figcaption, and a table holds its own.
  article.querySelectorAll("figcaption").forEach(caption => caption.closest("figure") || rename(caption, "div"));
  const title = article.querySelector("h1").textContent.trim();
  const body = new XMLSerializer().serializeToString(article);
  return { title, body, drawings, hasMath: Boolean(article.querySelector("math")) };
}
