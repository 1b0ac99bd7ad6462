// Gradient descent on two parameters, for Chapter 1: the path over the loss's contours, and the loss along it.
"use strict";
{
  const { html, svg, slider, range } = live;
  // The first coordinate of the chapter's 200 points, to two digits; their labels alternate, from 0.
  const X = [
    -3.31, -0.06, -1.88, 0.38, -2.3, 1.32, 0.14, 1.07, -0.85, -0.26, -1.02, 1.18, 0.01, 0.23, -1.69, 0.55,
    -1.09, 0.99, -2.27, 2.17, -0.35, -0.15, -1.31, -0.35, -4.15, 2.7, -1.59, 1.9, -2.38, 1.05, -1.28, 2.49,
    -2.13, 2, -0.82, -0.76, -0.25, 1.07, -0.55, 1.05, -1.7, 0.13, -0.11, 0.61, -1.17, 1.42, -1.48, -0.32,
    -1.59, -0.49, -0.58, 0.65, -0.79, 0.98, -1.44, -0.46, -1.53, 2.36, 0.11, 0.37, 0.11, 1.53, -0.6, 2.66,
    -0.95, -0.54, -0.24, 0.52, -0.74, 0.93, -0.21, 0.33, -0.91, 0.32, -2.31, 1.32, -1.41, 0.61, 0.09, 0.8,
    -0.11, 2.49, -2.68, -2.05, -0.88, 1.85, -2.11, 1.14, -1.1, 2.41, -1.21, 0.44, -0.2, 0.78, -0.19, 0.79,
    -1.83, 0.11, -2.6, -0.53, -1.31, -0.02, -1.43, 2.17, -2.75, 1.49, 0.62, 1.19, 0.36, 0.5, 1.38, 1.81, -1.1,
    3.2, -1.22, 0.66, -0.37, -0.62, -0.34, 0.81, -1.37, 0.63, -1.4, 2.18, -1.5, 2.29, -0.66, -1.59, 1.1, 1.3,
    -0.31, 2.22, -1.14, 0.97, -1.09, 0.23, 0, -0.04, 0.58, 1.13, -0.22, 1.64, 0.78, 0.43, -2.1, -0.93, -2.09,
    0.88, -0.04, 0.52, -2.1, 1.62, -0.84, 0.45, -1.02, 0.52, -1.19, 1.72, -0.81, 1.31, -1.85, 2.02, -2.64,
    1.11, -2.13, 0.98, -0.16, 0.06, -0.17, 0.09, -0.58, 2.22, -1.09, 0.54, -2.11, 2.26, -0.96, 0.9, -2.06,
    1.55, 0.12, 0.57, -0.42, 1.38, 0.15, 0.79, -2.54, -0.19, -0.93, 2.86, -2.38, 1.48, -0.5, 1.17, -0.19, 0,
    -3.26, 1.63, -3.76, 1.39,
  ];
  const UPDATES = 60;
  const signed = (value) => String(value).replace("-", "−");
  const W = { from: -1, to: 5, label: "weight w", show: signed }, B = { from: -7, to: 3, label: "bias b", show: signed };
  const MOMENTUM = 0.9;
  const METHODS = { plain: "Gradient descent", momentum: "with momentum 0.9", adam: "Adam" };
  const RATES = range(-30, 30).map((i) => Number((10 ** (i / 20)).toPrecision(2)));
  const FIRST_RATE = { plain: 4.5, momentum: 1, adam: 0.32 }; // where each of them shows its habits
  const FIRST_SHIFT = 1.5;
  const HEIGHTS = [0.01, 0.03, 0.1, 0.3, 1, 3]; // of the contours, above the least loss

  const mean = (xs, value) => xs.reduce((sum, x, n) => sum + value(x, n % 2), 0) / xs.length;
  const sigmoid = (z) => 1 / (1 + Math.exp(-z));

  // Equations (1.9), (1.6), and the derivatives of (1.6).
  const loss = (xs, [w, b]) => mean(xs, (x, y) => Math.max(0, w * x + b) + Math.log1p(Math.exp(-Math.abs(w * x + b))) - y * (w * x + b));
  const gradient = (xs, [w, b]) => [mean(xs, (x, y) => (sigmoid(w * x + b) - y) * x), mean(xs, (x, y) => sigmoid(w * x + b) - y)];
  function hessian(xs, [w, b]) {
    const spread = (x) => sigmoid(w * x + b) * sigmoid(-w * x - b);
    return [mean(xs, (x) => spread(x) * x * x), mean(xs, (x) => spread(x) * x), mean(xs, spread)]; // ww, wb, bb
  }

  // Newton's method: where the gradient is 0.
  function minimum(xs) {
    let [w, b] = [0, 0];
    for (let i = 0; i < 30; i++) {
      const [g_w, g_b] = gradient(xs, [w, b]);
      const [ww, wb, bb] = hessian(xs, [w, b]);
      const determinant = ww * bb - wb * wb;
      [w, b] = [w - (bb * g_w - wb * g_b) / determinant, b - (ww * g_b - wb * g_w) / determinant];
    }
    return [w, b];
  }

  function largest_curvature(xs) {
    const [ww, wb, bb] = hessian(xs, minimum(xs));
    return (ww + bb) / 2 + Math.hypot((ww - bb) / 2, wb);
  }

  // The rate above which a run cannot settle at the minimum; Adam, which rescales every step, has no such bound.
  const critical_rate = (xs, method) => ({ plain: 2, momentum: 2 + 2 * MOMENTUM }[method] ?? Infinity) / largest_curvature(xs);

  // The parameters before the first update and after each one.
  function path(xs, start, rate, method, updates = UPDATES) {
    const found = [start];
    let m = [0, 0], v = [0, 0];
    for (let t = 1; t <= updates; t++) {
      const theta = found.at(-1), g = gradient(xs, theta);
      let step = g;
      if (method === "momentum") step = m = m.map((value, i) => MOMENTUM * value + g[i]);
      if (method === "adam") {
        m = m.map((value, i) => 0.9 * value + 0.1 * g[i]);
        v = v.map((value, i) => 0.999 * value + 0.001 * g[i] ** 2);
        step = m.map((value, i) => value / (1 - 0.9 ** t) / (Math.sqrt(v[i] / (1 - 0.999 ** t)) + 1e-8));
      }
      found.push(theta.map((value, i) => value - rate * step[i]));
    }
    return found;
  }

  // The loss is convex: a ray from its minimum meets each contour once, where bisection finds it.
  function contour(xs, center, level) {
    return range(0, 60).map((i) => {
      const [x, y] = [Math.cos((i * Math.PI) / 30), Math.sin((i * Math.PI) / 30)];
      const at = (r) => [center[0] + r * x, center[1] + r * y];
      let [near, far] = [0, 30];
      for (let k = 0; k < 15; k++) {
        const middle = (near + far) / 2;
        if (loss(xs, at(middle)) < level) near = middle;
        else far = middle;
      }
      return at(near);
    });
  }

  // What no run changes, computed once for each distance by which the inputs are moved.
  const landscapes = {};
  function landscape_of(shift) {
    if (!landscapes[shift]) {
      const xs = X.map((x) => x + shift);
      const center = minimum(xs), least = loss(xs, center);
      landscapes[shift] = { xs, center, least, contours: HEIGHTS.map((height) => contour(xs, center, least + height)) };
    }
    return landscapes[shift];
  }

  function build() {
    const figures = (value) => value.toPrecision(2);
    const rate = slider("Rate η", RATES, FIRST_RATE.plain, figures, () => show(UPDATES));
    const shift = slider("Inputs moved by", range(0, 2, 0.25), FIRST_SHIFT, String, () => show(UPDATES));
    const method = html("select", { "aria-label": "Method", change: choose }, ...Object.entries(METHODS).map(([value, name]) => html("option", { value }, name)));
    const button = (name, click) => html("button", { type: "button", class: "live-button", click }, name);
    const mark = html("span", { class: "live-critical", "aria-hidden": "true" });
    rate.row.append(mark);
    const [plane, curve] = [new live.Plot("live-contours", 380, 262), new live.Plot("", 330, 262)];
    const said = html("output", { class: "live-said" });
    let start = [0, 0], shown = UPDATES, timer;

    const drag = (event) => event.buttons === 1 && event.pointerType === "mouse" && move(plane.values_at(event));
    const keys = { ArrowLeft: [-0.25, 0], ArrowRight: [0.25, 0], ArrowUp: [0, 0.25], ArrowDown: [0, -0.25] };
    function press(event) {
      if (!keys[event.key]) return;
      event.preventDefault();
      move(start.map((value, i) => value + keys[event.key][i]));
    }
    for (const [name, act] of Object.entries({ click: (event) => move(plane.values_at(event)), pointermove: drag, keydown: press })) plane.svg.addEventListener(name, act);
    plane.svg.setAttribute("tabindex", 0);
    plane.svg.setAttribute("role", "application");

    function move(place) {
      start = [W, B].map(({ from, to }, i) => Math.min(to, Math.max(from, Number(place[i].toFixed(2)))));
      show(UPDATES);
    }

    function choose() {
      rate.input.value = RATES.indexOf(FIRST_RATE[method.value]);
      rate.tell();
      show(UPDATES);
    }

    function reset() {
      [method.value, shift.input.value, start] = ["plain", 4 * FIRST_SHIFT, [0, 0]];
      shift.tell();
      choose();
    }

    function run() {
      if (matchMedia("(prefers-reduced-motion: reduce)").matches) return show(UPDATES);
      show(0);
      timer = setInterval(() => (shown < UPDATES ? draw(shown + 1) : clearInterval(timer)), 60);
    }

    function show(number) {
      clearInterval(timer);
      draw(number);
    }

    function draw(number) {
      shown = number;
      const { xs, center, least, contours } = landscape_of(shift.value);
      const points = path(xs, start, rate.value, method.value).slice(0, shown + 1);
      const losses = points.map((point) => loss(xs, point));
      const critical = critical_rate(xs, method.value);
      mark.hidden = critical > RATES.at(-1);
      mark.style.setProperty("--place", (Math.log(critical / RATES[0]) / Math.log(RATES.at(-1) / RATES[0])).toFixed(4));

      const bound = method.value === "adam" ? "" : ` With η above ${figures(critical)} (the mark) it cannot settle there.`;
      const sentence = `After ${shown} updates from w = ${signed(start[0])}, b = ${signed(start[1])} the loss is ${losses.at(-1).toFixed(4)}, at the minimum ${least.toFixed(4)}.`;
      plane.axes(W, B, `Contours of the loss over weight and bias, and the path to the minimum. Click, or press the arrow keys, to move the start.`);
      for (const each of contours) plane.line(each, "live-contour");
      plane.line(points, "live-main");
      plane.specks(points.slice(1), "live-update");
      plane.dot(center, "live-least");
      plane.dot(start, "live-start");
      curve.axes({ from: 0, to: UPDATES, label: "updates" }, { from: 0, to: 1.05 * Math.max(1, ...losses), label: "loss" }, sentence);
      curve.curve([[0, least], [UPDATES, least]], "live-other");
      curve.curve(losses.map((value, t) => [t, value]), "live-main");
      said.replaceChildren(sentence + bound);
    }

    draw(UPDATES);
    return html("div", { class: "live-panel live-descent" },
      html("div", { class: "live-walk" },
        html("div", { class: "live-controls" }, rate.row, shift.row, method,
          html("div", { class: "live-row" }, button("Run", run), button("One update", () => show(shown < UPDATES ? shown + 1 : 1)), button("Reset", reset))),
        plane.svg, curve.svg), said);
  }

  live.descent = { X, path, minimum, critical_rate, loss };
  live.mount("descent", build);
}
