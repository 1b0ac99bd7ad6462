// One query, three keys and their values in two planes, for Chapter 3: move them, and see scores, weights and the output.
"use strict";
{
  const { html, svg, percent, signed } = live;
  const EDGE = 3; // the planes go from −3 to 3
  const INDICES = ["₁", "₂", "₃"];

  const line = ([x1, y1], [x2, y2], state) => svg("line", { x1, y1: -y1, x2, y2: -y2, class: state });
  const new_plane = () => svg("svg", { class: "live-plane", viewBox: "-3.3 -3.3 6.6 6.6", role: "img" });
  const dot = (a, b) => a[0] * b[0] + a[1] * b[1];
  const written = (vector) => `(${[...vector].map(signed).join(", ")})`;

  function build() {
    const query = [1.6, 0.8];
    const keys = [[1.2, 1.4], [1.4, -1.2], [-1.6, 0.4]];
    const values = [[-0.8, 2.4], [2.4, 0.2], [-1.8, -2]];

    const [asked, answered] = [new_plane(), new_plane()];
    const scaled = html("input", { type: "checkbox", checked: true, change: update });
    const said = html("output", { class: "live-said" });
    const results = INDICES.map(() => ({ score: html("td"), weight: html("td", { class: "live-bar of-attention" }) }));
    const fields = [];

    // Two fields for a vector; the arrow keys change a number by a tenth.
    const place = (vector, name) => ["first", "second"].map((which, i) => {
      const changed = () => {
        vector[i] = field.value ?? vector[i];
        update();
      };
      const field = live.number_field(`${name}, ${which} number`, vector[i], [-EDGE, EDGE], 0.1, changed);
      fields.push({ field, vector, i });
      return html("td", {}, field.input);
    });
    const rows = INDICES.map((index, s) => html("tr", {}, html("th", { scope: "row", class: "live-name of-key" }, `k${index}`), ...place(keys[s], `k${index}`),
      results[s].score, results[s].weight, html("th", { scope: "row", class: "live-name of-value" }, `v${index}`), ...place(values[s], `v${index}`)));
    const heads = ["", "x", "y", "score", "weight", "", "x", "y"].map((text) => html(text ? "th" : "td", text ? { scope: "col" } : {}, text));
    const first = html("tr", {}, html("th", { scope: "row", class: "live-name of-query" }, "q"), ...place(query, "q"), ...heads.slice(3).map(() => html("td")));
    const table = html("table", { class: "live-table" }, html("thead", {}, html("tr", {}, ...heads)), html("tbody", {}, first, ...rows));

    // A point that can be dragged, with mouse or finger.
    function handle(plane, vector, name, state, weight) {
      const [x, y] = [vector[0], -vector[1]];
      const point = svg("g", { class: `live-handle ${state}` }, svg("circle", { class: "live-reach", cx: x, cy: y, r: 0.5 }),
        svg("circle", { cx: x, cy: y, r: 0.3 }), svg("text", { x, y: y + 0.1 }, name));
      point.style.setProperty("--weight", weight);
      point.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        const move = ({ clientX, clientY }) => {
          const at = new DOMPoint(clientX, clientY).matrixTransform(plane.getScreenCTM().inverse());
          [at.x, -at.y].forEach((number, i) => (vector[i] = Math.round(10 * Math.max(-EDGE, Math.min(EDGE, number))) / 10));
          for (const each of fields) if (each.vector === vector) each.field.value = vector[each.i];
          update();
        };
        const stop = new AbortController();
        addEventListener("pointermove", move, { signal: stop.signal });
        for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => stop.abort(), { signal: stop.signal });
      });
      return point;
    }

    const axes = () => [line([-EDGE, 0], [EDGE, 0], "live-axis"), line([0, -EDGE], [0, EDGE], "live-axis")];

    // Each key's shadow on the query's line.
    function draw_question(weights) {
      const along = dot(query, query) || 1;
      const foot = (key) => query.map((number) => (number * dot(query, key)) / along);
      const far = query.map((number) => 9 * number);
      asked.replaceChildren(...axes(), line(far.map((number) => -number), far, "live-along"),
        ...keys.map((key) => line(key, foot(key), "live-foot")), line([0, 0], query, "live-query of-query"),
        ...keys.map((key, s) => handle(asked, key, `k${INDICES[s]}`, "of-key", weights ? weights[s] : 0)), handle(asked, query, "q", "live-asking of-query", 0));
      const shares = weights ? `Weights: ${weights.map(percent).join(", ")}.` : "There is no answer.";
      asked.setAttribute("aria-label", `The query and the three keys in the plane. ${shares}`);
    }

    // The values, the triangle that they span, and the weighted values one behind the other up to the output.
    function draw_answer(weights, output) {
      const triangle = svg("polygon", { class: "live-span of-value", points: values.map(([x, y]) => `${x},${-y}`).join(" ") });
      const points = values.map((value, s) => handle(answered, value, `v${INDICES[s]}`, "of-value", weights ? weights[s] : 0));
      answered.replaceChildren(triangle, ...axes(), ...points);
      answered.setAttribute("aria-label", `The three values in the plane${output ? `, and their weighted sum, the output ${written(output)}` : ""}.`);
      if (!output) return;
      let end = [0, 0];
      const steps = values.map((value, s) => {
        const start = end;
        end = start.map((number, i) => number + weights[s] * value[i]);
        return line(start, end, "live-step");
      });
      const side = output[0] > 1.4 ? -1 : 1; // on which the word has room
      answered.append(...steps, line([0, 0], output, "live-query of-attention"), svg("circle", { class: "live-output of-attention", cx: output[0], cy: -output[1], r: 0.16 }),
        svg("text", { class: "live-output", x: output[0] + 0.25 * side, y: -output[1] - 0.2, "text-anchor": side < 0 ? "end" : "start" }, "output"));
    }

    function update() {
      const scale = scaled.checked ? Math.SQRT1_2 : 1;
      const known = fields.every(({ field }) => field.value !== undefined);
      const [[output], [weights]] = known ? live.scaled_dot_product_attention([query], keys, values, null, scale) : [[], []];
      results.forEach(({ score, weight }, s) => {
        score.replaceChildren(known ? signed(scale * dot(query, keys[s])) : "–");
        weight.replaceChildren(known ? percent(weights[s]) : "–");
        weight.style.setProperty("--weight", known ? weights[s] : 0);
      });
      draw_question(weights);
      draw_answer(weights, output);
      const sum = known && weights.map((weight, s) => `${weight.toFixed(3)} · ${written(values[s])}`).join(" + ");
      said.replaceChildren(known ? `Output: ${sum} = ${written(output)}` : "");
    }

    update();
    const half = (plane, words) => html("div", {}, html("p", { class: "live-label" }, words), plane);
    return html("div", { class: "live-panel live-attention" },
      html("div", { class: "live-planes" }, half(asked, "The query asks the keys"), half(answered, "The values give the output")),
      html("div", {}, table, ...fields.map(({ field }) => field.note), said, html("label", { class: "live-switch" }, scaled, "divide by √dₖ = √2")));
  }

  live.mount("attention", build);
}
