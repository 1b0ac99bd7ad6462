// What live figures share: elements with their attributes, and the place where a figure stands.
"use strict";
{
  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (typeof value === "function") element.addEventListener(name, value);
      else if (value !== false && value !== undefined) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children);
    return element;
  }

  const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const svg = (tag, attributes = {}, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
  const percent = (share) => `${(100 * share).toFixed(share > 0.9995 || share < 0.1 ? 0 : 1)}\u00a0%`;

  // Puts what `build` returns into the page's figures of that name, above the caption. Where the figure has a model,
  // `build` is given it with its record, and the caption says how far it is from PyTorch's.
  function mount(name, build) {
    const record = live.models?.[name];
    const start = performance.now();
    for (const figure of document.querySelectorAll(`figure[data-live="${name}"]`)) {
      const model = record && live.load_model(record);
      const caption = figure.querySelector("figcaption");
      figure.replaceChildren(build(model, record), caption);
      figure.classList.add("live-ready");
      performance.measure(`live ${name}`, { start });

      if (!record) continue;
      const size = record.sizes.reduce((sum, [, numbers]) => sum + numbers, 0).toLocaleString("en");
      const check = `✓ ${size} parameters. On the first example, no logit differs from PyTorch's by more than ${
        above(live.difference(model, record.check))}.`;
      caption.append(html("p", { class: "live-check" }, check));
    }
  }

  // The next higher number of one digit: "7 · 10⁻⁶".
  function above(number) {
    const unit = 10 ** Math.floor(Math.log10(number));
    const [digit, exponent] = (Math.ceil(number / unit) * unit).toExponential(0).split("e-");
    return `${digit} · 10⁻${[...exponent].map((each) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[each]).join("")}`;
  }

  Object.assign(live, { html, svg, percent, mount });
}
