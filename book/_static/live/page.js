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
  const percent = (share) => `${(100 * share).toFixed(share > 0.9995 ? 0 : 1)}%`;

  const signed = (number) => number.toFixed(2).replace("-", "−");

  // "7.0 · 10⁻⁴", with that many digits behind the point.
  function scientific(number, digits) {
    const [digit, exponent] = number.toExponential(digits).split("e");
    return `${digit} · 10${[...exponent.replace("+", "")].map((sign) => (sign === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[sign])).join("")}`;
  }

  // A labeled slider over a list of values. `show` says a value in words, which stand beside the slider and are read out.
  function slider(label, values, first, show, changed) {
    const shown = html("output", { class: "live-place" });
    const input = html("input", { type: "range", "aria-label": label, min: 0, max: values.length - 1, step: 1, value: values.indexOf(first), input: () => { tell(); changed(); } });
    const tell = () => {
      const text = show(values[input.value]);
      shown.replaceChildren(text);
      input.setAttribute("aria-valuetext", text);
    };
    tell();
    return { input, tell, row: html("label", { class: "live-slider" }, html("span", {}, label), input, shown), get value() { return values[input.value]; } };
  }

  let notes = 0;

  // A line beside a field that says what is wrong with it; `complain` with words marks the field, without them it does not.
  function note_for(input) {
    const note = html("output", { class: "live-note", id: `live-note-${++notes}` });
    input.setAttribute("aria-describedby", note.id);
    const complain = (words) => {
      input.setAttribute("aria-invalid", Boolean(words));
      if (note.textContent !== (words || "")) note.replaceChildren(words || "");
    };
    return { note, complain };
  }

  // A field for a number between two bounds. While it holds anything else, it is marked and has no value.
  function number_field(name, first, [from, to], step, changed) {
    const input = html("input", { type: "number", "aria-label": name, min: from, max: to, step, value: first, input: () => { check(); changed(); } });
    const { note, complain } = note_for(input);
    const [low, high] = [from, to].map((bound) => bound.toLocaleString("en").replace("-", "−"));
    const fits = () => input.valueAsNumber >= from && input.valueAsNumber <= to;
    const check = () => complain(!fits() && `${name}: a number from ${low} to ${high}.`);
    return {
      input, note,
      get value() { return fits() ? input.valueAsNumber : undefined; },
      set value(number) {
        if (input.valueAsNumber !== number) input.value = number; // or else "1.50" becomes "1.5" under the hand that types it
        check();
      },
    };
  }

  // A line of text of at most so many characters. What is longer is not cut, but marked.
  function text_field(attributes, most, changed) {
    const input = html("input", { type: "text", autocomplete: "off", autocapitalize: "off", spellcheck: "false", ...attributes, input: () => { check(); changed(); } });
    const { note, complain } = note_for(input);
    const length = () => [...input.value].length;
    const check = () => complain(length() > most && `At most ${most} characters are read; these are ${length()}.`);
    check();
    return { input, note, check, get fits() { return length() <= most; } };
  }

  const range = (from, to, step = 1) =>
    Array.from({ length: Math.round((to - from) / step) + 1 }, (_, i) => Number((from + i * step).toPrecision(12)));
  const rounded = (numbers) => numbers.map((number) => Number(number.toFixed(1)));

  let plots = 0; // drawn so far; each clips its lines by a rectangle of its own

  // Axes with their ticks; an axis is {from, to, label, log, show}.
  class Plot {
    // The drawing is so wide and high; around its field it has 62 units on the left, 26, 14 and 46 below.
    constructor(kind = "", wide = 480, high = 250) {
      Object.assign(this, { wide, right: wide - 26, bottom: high - 46 });
      this.svg = svg("svg", { class: `live-plot ${kind}`, viewBox: `0 0 ${wide} ${high}`, role: "img" });
      this.clip = `live-inside-${++plots}`;
    }

    #share = ({ from, to, log }, value) => (log ? Math.log(value / from) / Math.log(to / from) : (value - from) / (to - from));
    #place = ([x, y]) => rounded([62 + (this.right - 62) * this.#share(this.x, x), this.bottom - (this.bottom - 14) * this.#share(this.y, y)]);

    #ticks({ from, to, log }) {
      if (log) {
        const [low, high] = [Math.ceil(Math.log10(from)), Math.floor(Math.log10(to))];
        const step = Math.ceil((high - low) / 6) || 1;
        return range(low, high).filter((power) => (high - power) % step === 0).map((power) => 10 ** power);
      }
      const unit = 10 ** Math.floor(Math.log10((to - from) / 3));
      const step = unit * [5, 2, 1].find((each) => (to - from) / (each * unit) >= 3);
      return range(Math.ceil(from / step) * step, Math.floor(to / step + 1e-9) * step, step);
    }

    // Begins anew with these axes; what is drawn later lies above.
    axes(x, y, label) {
      Object.assign(this, { x, y });
      const { right, bottom } = this;
      const words = ({ show = (value) => value.toLocaleString("en") }, value) => show(value);
      const across = this.#ticks(x).flatMap((value) => {
        const [left] = this.#place([value, y.from]);
        return [svg("line", { x1: left, y1: 14, x2: left, y2: bottom }), svg("text", { x: left, y: bottom + 17, "text-anchor": "middle" }, words(x, value))];
      });
      const up = this.#ticks(y).flatMap((value) => {
        const [, top] = this.#place([x.from, value]);
        return [svg("line", { x1: 62, y1: top, x2: right, y2: top }), svg("text", { x: 56, y: top + 4.5, "text-anchor": "end" }, words(y, value))];
      });
      const title = svg("text", { x: (62 + right) / 2, y: bottom + 39, "text-anchor": "middle" }, x.label);
      const side = svg("text", { transform: `translate(13 ${(14 + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, y.label);
      this.svg.setAttribute("aria-label", label);
      this.svg.replaceChildren(svg("g", { class: "live-axes" }, ...across, ...up, title, side));
    }

    // Nothing, where there is no answer.
    clear(label) {
      this.svg.setAttribute("aria-label", label);
      this.svg.replaceChildren();
    }

    // A curve through points [x, y], as far as they lie between the ends of y.
    curve(points, state) {
      const inside = ([, y]) => Number.isFinite(y) && y >= this.y.from && y <= this.y.to;
      const path = points.map((point, i) => inside(point) && `${i && inside(points[i - 1]) ? "L" : "M"}${this.#place(point).join(" ")}`);
      this.svg.append(svg("path", { class: state, d: path.filter(Boolean).join("") }));
    }

    #inside(state, d) {
      if (!this.svg.querySelector("clipPath")) {
        this.svg.append(svg("clipPath", { id: this.clip }, svg("rect", { x: 62, y: 14, width: this.right - 62, height: this.bottom - 14 })));
      }
      this.svg.append(svg("path", { class: state, d, "clip-path": `url(#${this.clip})` }));
    }

    // A line through points [x, y], cut off at the edges of the plot.
    line(points, state) {
      this.#inside(state, `M${points.map((point) => this.#place(point).join(" ")).join("L")}`);
    }

    // Points too small to be handled.
    specks(points, state) {
      this.#inside(state, points.map((point) => `M${this.#place(point).join(" ")}h0`).join(""));
    }

    // Where on its linear axes a pointer is.
    values_at({ clientX, clientY }) {
      const { left, top, width } = this.svg.getBoundingClientRect();
      const unit = this.wide / width;
      const [across, up] = [((clientX - left) * unit - 62) / (this.right - 62), (this.bottom - (clientY - top) * unit) / (this.bottom - 14)];
      return [this.x.from + (this.x.to - this.x.from) * across, this.y.from + (this.y.to - this.y.from) * up];
    }

    dot(point, state) {
      const [cx, cy] = this.#place(point);
      this.svg.append(svg("circle", { class: state, cx, cy, r: 5.5 }));
    }
  }

  const FOLDER = document.currentScript.src;
  const asked = {};

  // A model's weights are a script: a page that is opened from the disk may load nothing else.
  const load = (address) => (asked[address] ??= new Promise((resolve, reject) => {
    document.head.append(html("script", { src: new URL(address, FOLDER), load: resolve, error: reject }));
  }));

  // Waits until a reader is at most the height of a window away.
  const near = (element) => new Promise((resolve) => {
    const observer = new IntersectionObserver((entries) => {
      if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
      observer.disconnect();
      resolve();
    }, { rootMargin: "100% 0%" });
    observer.observe(element);
  });

  // Puts what `build` returns into the page's figures of that name, above the caption. Where the figure has a model,
  // `build` is given it with its record, and the caption says how far it is from PyTorch's.
  function mount(name, build, model_name = name) {
    for (const figure of document.querySelectorAll(`figure[data-live="${name}"]`)) {
      const { model } = figure.dataset;
      if (model) near(figure).then(() => load(model)).then(() => place(figure, name, build, live.models[model_name]));
      else place(figure, name, build);
    }
  }

  function place(figure, name, build, record) {
    const start = performance.now();
    const model = record && live.load_model(record);
    const caption = figure.querySelector("figcaption");
    figure.replaceChildren(build(model, record), caption);
    figure.classList.add("live-ready");
    figure.dispatchEvent(new Event("placed", { bubbles: true }));
    performance.measure(`live ${name}`, { start });

    if (!record) return;
    const size = record.sizes.reduce((sum, [, numbers]) => sum + numbers, 0).toLocaleString("en");
    const off = above(live.difference(model, record.check));
    caption.append(html("p", { class: "live-check" }, `✓ ${size} parameters; logits of the first example within ${off} of PyTorch's.`));
  }

  // The next higher number of one digit: "7 · 10⁻⁶".
  function above(number) {
    const unit = 10 ** Math.floor(Math.log10(number));
    return scientific(Math.ceil(number / unit) * unit, 0);
  }

  Object.assign(live, { html, svg, percent, signed, scientific, slider, number_field, text_field, note_for, range, Plot, mount });
}
