// Positions as clocks, for Chapter 2: a hand for each pair of columns, and the dot product of two positions by their distance.
"use strict";
{
  const { html, svg, slider, range } = live;
  const COUNT = 100; // positions

  const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);

  function build() {
    const width = slider("d_model", [8, 16, 32, 64], 16, String, update);
    const position = slider("Position p", range(0, COUNT), 5, String, update);
    const offset = slider("Offset k", range(0, COUNT), 3, String, update);
    const clocks = svg("svg", { class: "live-clocks", role: "img" });
    const plot = new live.Plot();
    const said = html("output", { class: "live-said" });

    // The hand of a pair points to its sine rightward and to its cosine upward: it turns as a clock's does.
    const hand = (vector, i, state) => svg("line", {
      class: state, x1: 0, y1: 0, x2: (24 * vector[2 * i]).toFixed(1), y2: (-24 * vector[2 * i + 1]).toFixed(1),
    });

    function update() {
      const [d_model, p, k] = [width.value, position.value, offset.value];
      const [here, there] = [p, p + k].map((place) => live.sinusoidal_encoding(place, d_model));
      const pairs = d_model / 2;
      const [across, scale] = pairs > 16 ? [8, 1] : [4, 1.7];
      const [wide, high] = [480 / across, 56 * scale + 24];
      clocks.setAttribute("viewBox", `0 0 480 ${(high * Math.ceil(pairs / across)).toFixed(1)}`);
      clocks.setAttribute("aria-label", `${pairs} clocks, each with a hand for position ${p} and one for position ${p + k}.`);
      clocks.replaceChildren(...range(0, pairs - 1).map((i) => {
        const period = 2 * Math.PI * 10000 ** ((2 * i) / d_model);
        const [x, y] = [wide * (0.5 + (i % across)), high * Math.floor(i / across) + 28 * scale];
        return svg("g", { class: "live-clock", transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` },
          svg("g", { transform: `scale(${scale})` }, svg("circle", { r: 27 }), hand(here, i, "live-here"), hand(there, i, "live-there")),
          svg("text", { y: (28 * scale + 14).toFixed(1), "text-anchor": "middle" }, period.toLocaleString("en", { maximumSignificantDigits: 3 })));
      }));

      const product = dot(here, there);
      const start = live.sinusoidal_encoding(0, d_model);
      const lowest = d_model < 32 ? -pairs / 2 : -pairs / 8;
      plot.axes({ from: 0, to: COUNT, label: "offset k" }, { from: lowest, to: pairs, label: "PE(p) · PE(p+k)" },
        `The dot product by the offset. At ${k} it is ${product.toFixed(2)}.`);
      plot.curve(range(0, COUNT, 0.5).map((each) => [each, dot(start, live.sinusoidal_encoding(each, d_model))]), "live-main");
      plot.dot([k, product], "live-main");
      said.replaceChildren(`PE(${p}) · PE(${p + k}) = ${product.toFixed(3)}, of at most d_model / 2 = ${pairs}.`);
    }

    update();
    return html("div", { class: "live-panel live-positions" },
      html("div", { class: "live-sliders live-stack" }, width.row, position.row, offset.row),
      html("div", { class: "live-halves" }, clocks, plot.svg), said);
  }

  live.mount("positions", build);
}
