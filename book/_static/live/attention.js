// One query and three keys in the plane, for Chapter 3: move them, and see scores, weights and their mean.
"use strict";
{
  const { html, svg, percent } = live;
  const EDGE = 3; // the plane goes from −3 to 3
  const NAMES = ["k₁", "k₂", "k₃"];

  function build() {
    const query = [1.6, 0.8];
    const keys = [[1.2, 1.4], [1.4, -1.2], [-1.6, 0.4]];
    const values = [[10], [20], [30]];

    const plane = svg("svg", { class: "live-plane", viewBox: "-3.3 -3.3 6.6 6.6", role: "img" });
    const scaled = html("input", { type: "checkbox", checked: true, change: update });
    const said = html("p", { class: "live-said" });
    const results = NAMES.map(() => ({ score: html("td"), weight: html("td", { class: "live-bar" }) }));
    const fields = [];

    // A field for one coordinate; the arrow keys change it by a tenth.
    function field(vector, i, name, most) {
      const changed = () => {
        if (!Number.isFinite(input.valueAsNumber)) return;
        vector[i] = Math.max(-most, Math.min(most, input.valueAsNumber));
        update();
      };
      const step = most > EDGE ? 1 : 0.1;
      const input = html("input", { type: "number", step, min: -most, max: most, "aria-label": name, input: changed });
      fields.push(() => { if (document.activeElement !== input) input.value = vector[i]; });
      return html("td", {}, input);
    }

    const place = (vector, name) => [field(vector, 0, `${name}, first number`, EDGE), field(vector, 1, `${name}, second number`, EDGE)];
    const rows = NAMES.map((name, s) => html("tr", {}, html("th", { scope: "row" }, name), ...place(keys[s], name),
      results[s].score, results[s].weight, field(values[s], 0, `value of ${name}`, 99)));
    const heads = ["", "x", "y", "score", "weight", "value"].map((text) => html(text ? "th" : "td", text ? { scope: "col" } : {}, text));
    const table = html("table", { class: "live-table" }, html("thead", {}, html("tr", {}, ...heads)),
      html("tbody", {}, html("tr", {}, html("th", { scope: "row" }, "q"), ...place(query, "q"), html("td"), html("td"), html("td")), ...rows));

    // A point that can be dragged, with mouse or finger.
    function handle(vector, name, state, weight) {
      const [x, y] = [vector[0], -vector[1]];
      const point = svg("g", { class: `live-handle ${state}` }, svg("circle", { cx: x, cy: y, r: 0.3 }),
        svg("text", { x, y: y + 0.1 }, name));
      point.style.setProperty("--weight", weight);
      point.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        const move = ({ clientX, clientY }) => {
          const at = new DOMPoint(clientX, clientY).matrixTransform(plane.getScreenCTM().inverse());
          [at.x, -at.y].forEach((number, i) => (vector[i] = Math.round(10 * Math.max(-EDGE, Math.min(EDGE, number))) / 10));
          update();
        };
        const stop = new AbortController();
        addEventListener("pointermove", move, { signal: stop.signal });
        for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => stop.abort(), { signal: stop.signal });
      });
      return point;
    }

    function update() {
      const scale = scaled.checked ? Math.SQRT1_2 : 1;
      const [[mean], [weights]] = live.scaled_dot_product_attention([query], keys, values, null, scale);
      const scores = keys.map((key) => scale * (query[0] * key[0] + query[1] * key[1]));
      fields.forEach((refresh) => refresh());
      results.forEach(({ score, weight }, s) => {
        score.replaceChildren(scores[s].toFixed(2));
        weight.replaceChildren(percent(weights[s]));
        weight.style.setProperty("--weight", weights[s]);
      });

      const along = query[0] ** 2 + query[1] ** 2 || 1;
      const feet = keys.map((key) => (query[0] * key[0] + query[1] * key[1]) / along);
      const line = (x1, y1, x2, y2, state) => svg("line", { x1, y1: -y1, x2, y2: -y2, class: state });
      plane.replaceChildren(line(-EDGE, 0, EDGE, 0, "live-axis"), line(0, -EDGE, 0, EDGE, "live-axis"),
        line(-9 * query[0], -9 * query[1], 9 * query[0], 9 * query[1], "live-along"),
        ...keys.map((key, s) => line(...key, feet[s] * query[0], feet[s] * query[1], "live-foot")),
        line(0, 0, ...query, "live-query"),
        ...keys.map((key, s) => handle(key, NAMES[s], "", weights[s])), handle(query, "q", "live-asking", 0));
      const sum = weights.map((weight, s) => `${weight.toFixed(3)} · ${values[s][0]}`).join(" + ");
      said.replaceChildren(`${sum} = ${mean[0].toFixed(2)}`);
      plane.setAttribute("aria-label", `The query and the three keys in the plane. Weights: ${weights.map(percent).join(", ")}.`);
    }

    update();
    return html("div", { class: "live-panel live-attention" }, html("div", { class: "live-columns" },
      html("div", {}, plane),
      html("div", {}, table, html("label", { class: "live-switch" }, scaled, "divide by √dₖ = √2"), said)));
  }

  live.mount("attention", build);
}
