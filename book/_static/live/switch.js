// Faults to be switched on, for Chapter 16: the curve of a model with one, and what the model then writes.
"use strict";
{
  const { html, svg, percent, slider, range } = live;

  function build() {
    const { updates, right, faults } = live.data.switch;
    let on = "norm over the words"; // the fault that is switched on, if one is
    const switches = faults.map(([name]) => html("button", { type: "button", role: "switch", class: "live-button live-toggle", click: () => flip(name) }, name));
    const seed = slider("Seed", range(0, right.length - 1), 0, String, () => update());
    const code = html("div", { class: "live-line" });
    const plot = new live.Plot("", 480, 214);
    const strip = svg("svg", { class: "live-clocks live-strip", role: "img", viewBox: "0 0 240 142" });
    const said = html("output", { class: "live-said" });

    function flip(name) {
      on = on === name ? "" : name;
      update();
    }

    // Ten runs as dots from 0 to 100%, the run of this seed the largest and on top.
    function dots(trials, score, y, state) {
      const order = [...trials.keys()].filter((i) => i !== seed.value).concat(seed.value);
      return order.map((i) => svg("circle", {
        class: i === seed.value ? `${state} live-chosen` : state, cx: (10 + 220 * trials[i][score]).toFixed(1), cy: y, r: i === seed.value ? 6 : 3.5,
      }));
    }

    function draw_strip(trials) {
      const text = (x, y, words, anchor) => svg("text", { x, y, "text-anchor": anchor }, words);
      const row = (each, score, y, state) => [svg("line", { x1: 10, y1: y, x2: 230, y2: y }), ...(each ? dots(each, score, y, state) : [])];
      const rows = [["tokens right, truth given", 1, 12], ["sentences right, on its own", 2, 78]].flatMap(([name, score, y]) =>
        [text(2, y, name, "start"), ...row(right, score, y + 16, "live-other"), ...row(trials, score, y + 36, "live-main")]);
      strip.replaceChildren(...rows, text(2, 138, "0%", "start"), text(120, 138, "50%", "middle"), text(238, 138, "100%", "end"));
    }

    function update() {
      const [name, section, line, meant, trials] = faults.find(([each]) => each === on) ?? [];
      switches.forEach((button, i) => button.setAttribute("aria-checked", faults[i][0] === on));
      const points = (trial) => trial[0].map((loss, i) => [updates[i], loss]);
      const [run, faulty] = [right[seed.value], trials?.[seed.value]];
      const say = ([losses, teacher, free]) => `loss ${losses.at(-1).toFixed(2)}, tokens ${percent(teacher)}, sentences ${percent(free)}.`;
      const words = `Right model: ${say(run)} ${faulty ? `With “${name}”: ${say(faulty)}` : "Switch on a fault."}`;

      plot.axes({ from: 0, to: updates.at(-1), label: "update" }, { from: 0, to: 4.2, label: "training loss" }, `The training loss. ${words}`);
      plot.curve(points(run), "live-other");
      if (faulty) plot.curve(points(faulty), "live-main");
      strip.setAttribute("aria-label", `The shares of right tokens and of right sentences in ten runs${faulty ? `, without a fault and with “${name}”` : ""}.`);
      draw_strip(trials);
      const parts = faulty && [html("code", {}, line), `Meant: ${meant.replace(/^-/, "−")}. `, html("a", { href: `#${section}` }, "Read the case")];
      code.replaceChildren(...(parts || ["Every line is as it was meant."]));
      said.replaceChildren(words);
    }

    update();
    return html("div", { class: "live-panel live-faults" },
      html("div", { class: "live-toggles", role: "group", "aria-label": "Faults" }, ...switches),
      html("div", { class: "live-case" }, code, html("div", { class: "live-evidence" }, plot.svg, html("div", {}, strip, seed.row)), said));
  }

  live.mount("switch", build);
}
