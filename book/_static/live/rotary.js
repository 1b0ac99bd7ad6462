// Rotary positions as clocks, and heads that share their keys and values, for Chapter 15.
"use strict";
{
  const { html, svg, slider, range, signed } = live;
  const LAST = 100; // the last position
  // A query and a key of a head with d_k = 8: features i and i + 4 are a pair.
  const QUERY = [0.8, 0.7, 0.9, 0.6, 0.5, 0.6, 0.3, 0.7];
  const KEY = [0.9, 0.5, 0.4, 0.8, -0.2, 0.8, 0.8, 0.3];
  const LLAMA = { n_layers: 32, n_heads: 32, d_k: 128 }; // Llama 3 with 8 billion parameters

  // A query or key at a position, as `rotate` of transformer/modern/parts.py turns it.
  function rotate(x, position, base = 10000) {
    const half = x.length / 2;
    return x.map((value, i) => {
      const angle = position * base ** ((-2 * (i % half)) / x.length);
      const other = x[(i + half) % x.length];
      return value * Math.cos(angle) + (i < half ? -other : other) * Math.sin(angle);
    });
  }

  // Keys and values of all layers, two bytes a number, as `cache_bytes` of transformer/modern/language_model.py counts.
  const cache_bytes = ({ n_layers, d_k }, kv_heads, length) => 2 * n_layers * kv_heads * length * d_k * 2;

  function size(bytes) {
    const power = Math.floor(Math.log2(bytes) / 10);
    return `${(bytes / 1024 ** power).toLocaleString("en", { maximumFractionDigits: 1 })} ${["bytes", "KiB", "MiB", "GiB"][power]}`;
  }

  function clocks_part() {
    const query = slider("Query at t", range(0, LAST), 7, String, () => follow());
    const key = slider("Key at s", range(0, LAST), 4, String, () => follow());
    const both = slider("Move both", range(0, LAST), 4, () => "", move);
    query.row.classList.add("of-query");
    key.row.classList.add("of-key");
    const clocks = svg("svg", { class: "live-clocks", role: "img", viewBox: "0 0 400 128" });
    const said = html("output", { class: "live-said" });
    const place = ({ input }) => Number(input.value);

    // Moves query and key by as much, as far as both stay between the first position and the last.
    function move() {
      const by = place(both) - Math.min(place(query), place(key));
      for (const each of [query, key]) {
        each.input.value = place(each) + by;
        each.tell();
      }
      update();
    }

    function follow() {
      both.input.max = LAST - Math.abs(place(query) - place(key));
      both.input.value = Math.min(place(query), place(key));
      update();
    }

    function update() {
      const [t, s] = [place(query), place(key)];
      const [q, k] = [rotate(QUERY, t), rotate(KEY, s)];
      both.input.setAttribute("aria-valuetext", `query at ${t}, key at ${s}`);
      const products = range(0, 3).map((i) => q[i] * k[i] + q[i + 4] * k[i + 4]);
      const hand = (x, i, state) => svg("line", { class: state, x1: 0, y1: 0, x2: (38 * x[i]).toFixed(1), y2: (-38 * x[i + 4]).toFixed(1) });
      clocks.setAttribute("aria-label", `Four clocks with the hands of a query at ${t} and a key at ${s}; their products are ${products.map(signed).join(", ")}.`);
      clocks.replaceChildren(...products.map((product, i) => {
        const period = (2 * Math.PI * 10 ** i).toLocaleString("en", { maximumSignificantDigits: 3 });
        return svg("g", { class: "live-clock", transform: `translate(${50 + 100 * i} 44)` },
          svg("circle", { r: 42 }), hand(k, i, "of-key"), hand(q, i, "of-query"),
          svg("text", { class: "live-product", y: 61, "text-anchor": "middle" }, signed(product)),
          svg("text", { y: 79, "text-anchor": "middle" }, `period ${period}`));
      }));
      const sum = products.reduce((total, product) => total + product);
      said.replaceChildren(`Distance t − s = ${String(t - s).replace("-", "−")}: the score q · k is the sum of the four, ${signed(sum)}.`);
    }

    follow();
    return html("div", {}, clocks, html("div", { class: "live-stack" }, query.row, key.row, both.row), said);
  }

  function cache_part() {
    const { n_heads } = LLAMA;
    const shared = slider("Shared heads", range(0, 5).map((power) => 2 ** power), 8, String, update);
    const length = slider("Tokens", range(0, 17).map((power) => 2 ** power), 8192, (value) => value.toLocaleString("en"), update);
    const drawing = svg("svg", { class: "live-clocks live-sharing", role: "img", viewBox: "0 0 400 128" });
    const said = html("output", { class: "live-said" });

    function update() {
      const kv_heads = shared.value;
      const [token, text] = [1, length.value].map((tokens) => cache_bytes(LLAMA, kv_heads, tokens));
      const whole = cache_bytes(LLAMA, n_heads, length.value);
      const heads = kv_heads === 1 ? "1 head" : `${kv_heads} heads`;
      const [wide, share] = [392 / n_heads, 392 / kv_heads];
      const x = (i) => (4 + wide * (i + 0.5)).toFixed(1);
      const own = (i) => (4 + share * (Math.floor((i * kv_heads) / n_heads) + 0.5)).toFixed(1);
      drawing.setAttribute("aria-label", `${n_heads} query heads read ${heads} of keys and values; the cache is ${(100 * text / whole).toFixed(0)}% of that without sharing.`);
      drawing.replaceChildren(
        svg("text", { x: 4, y: 12 }, `${n_heads} query heads`),
        ...range(0, n_heads - 1).flatMap((i) => [
          svg("path", { class: "live-link", d: `M${x(i)} 28L${own(i)} 56` }), svg("circle", { cx: x(i), cy: 24, r: 4.5 })]),
        ...range(0, kv_heads - 1).map((i) =>
          svg("rect", { class: "live-shared", x: (4 + share * i + 1).toFixed(1), y: 56, width: (share - 2).toFixed(1), height: 14, rx: 2 })),
        svg("text", { x: 4, y: 87 }, `${heads} of keys and values`),
        svg("rect", { class: "live-field", x: 4, y: 97, width: 392, height: 12 }),
        svg("rect", { class: "live-main", x: 4, y: 97, width: (392 * text / whole).toFixed(1), height: 12 }),
        svg("text", { x: 4, y: 124 }, `cache ${size(text)}`),
        svg("text", { x: 396, y: 124, "text-anchor": "end" }, `unshared ${size(whole)}`));
      const tokens = `${length.value.toLocaleString("en")} ${length.value === 1 ? "token" : "tokens"}`;
      said.replaceChildren(`${heads}: ${size(token)} a token, ${size(text)} for ${tokens}${kv_heads < n_heads ? ` instead of ${size(whole)}` : ""}.`);
    }

    update();
    return html("div", {}, drawing, html("div", { class: "live-stack" }, shared.row, length.row), said);
  }

  const build = () => html("div", { class: "live-panel live-rotary live-halves" }, clocks_part(), cache_part());

  Object.assign(live, { rotate, cache_bytes, rotary: { QUERY, KEY, LLAMA } });
  live.mount("rotary", build);
}
