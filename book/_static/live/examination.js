// A model, a fault, and the checks that notice it, for Chapter 16: what the record of the clinic says.
"use strict";
{
  const { html, svg } = live;
  const ACROSS = 3; // lamps in a row

  // What each check says of a model with a fault, "" for none: "pass", "FAIL" or "skipped".
  function verdicts({ checks, needed }, [, , skipped, faults], fault) {
    const failed = new Set(faults[fault]);
    let missing = false; // a check has failed without which the later ones measure nothing
    return Object.fromEntries(Object.keys(checks).map((name) => {
      const verdict = failed.has(name) ? "FAIL" : missing || skipped.includes(name) ? "skipped" : "pass";
      missing ||= needed.includes(name) && failed.has(name);
      return [name, verdict];
    }));
  }

  function build() {
    const data = live.data.examination;
    const names = Object.keys(data.checks);
    const libraries = [...new Set(data.models.map(([library]) => library))];
    const kind = html("select", { "aria-label": "Model", change: () => choose_model() }, ...libraries.map((library) =>
      html("optgroup", { label: library }, ...data.models.flatMap(([of, name], i) => (of === library ? [html("option", { value: i }, name)] : [])))));
    const fault = html("select", { "aria-label": "Fault", change: () => update() });
    const step = (by) => () => {
      fault.selectedIndex = (fault.selectedIndex + by + fault.length) % fault.length;
      update();
    };
    const [back, on] = [["Previous fault", "‹", -1], ["Next fault", "›", 1]].map(([label, sign, by]) =>
      html("button", { type: "button", class: "live-button", "aria-label": label, click: step(by) }, sign));
    const lamps = svg("svg", { class: "live-lamps", role: "img", viewBox: `0 0 400 ${30 * Math.ceil(names.length / ACROSS)}` });
    const found = html("div", { class: "live-found" });
    const said = html("output", { class: "live-said" });

    function choose_model(first = fault.value) {
      const faults = Object.keys(data.models[kind.value][3]);
      fault.replaceChildren(...faults.map((name) => html("option", { value: name }, name || "none")));
      fault.value = faults.includes(first) ? first : "";
      update();
    }

    // How many other faults of the model give the same picture.
    function alike(faults) {
      const picture = (name) => [...faults[name]].sort().join();
      const others = Object.keys(faults).filter((name) => name && name !== fault.value && picture(name) === picture(fault.value));
      const named = others.map((name) => `“${name}”`).join(", ");
      return others.length ? ` The same fail with ${named}.` : " No other fault of this model gives this picture.";
    }

    function words(faults, failures) {
      if (!fault.value) return "Nothing is wrong with this model, and no check says so.";
      if (data.unseen.includes(fault.value)) return "No check fails. Another function that keeps the same rules cannot be told from the right one from outside.";
      if (!failures.length) return "No check fails, although this fault can be seen: a miss.";
      return `${failures.length} of ${names.length} checks ${failures.length === 1 ? "fails" : "fail"}.${alike(faults)}`;
    }

    function update() {
      const model = data.models[kind.value];
      const found_at = verdicts(data, model, fault.value);
      const failures = names.filter((name) => found_at[name] === "FAIL");
      lamps.setAttribute("aria-label", `${failures.length} of ${names.length} checks fail${failures.length ? `: ${failures.join(", ")}` : ""}.`);
      lamps.replaceChildren(...names.map((name, i) => {
        const [x, y] = [4 + 133 * (i % ACROSS), 15 + 30 * Math.floor(i / ACROSS)];
        const verdict = found_at[name];
        const cross = `M${x + 5} ${y - 4}l8 8m0 -8l-8 8`;
        const hook = `M${x + 5} ${y}l3 4l6 -8`;
        return svg("g", { class: `live-lamp live-lamp-${verdict.toLowerCase()}` },
          svg("circle", { cx: x + 9, cy: y, r: 9 }), ...(verdict === "skipped" ? [] : [svg("path", { d: verdict === "FAIL" ? cross : hook })]),
          svg("text", { x: x + 24, y: y + 5 }, name));
      }));
      const rows = failures.map((name) => {
        const [asked, suspects] = data.checks[name];
        return html("p", {}, html("strong", {}, `${name}. `), `${asked} `, html("em", {}, "Suspects: "), `${suspects}.`);
      });
      found.replaceChildren(...rows);
      said.replaceChildren(words(model[3], failures));
    }

    choose_model("norm over the words");
    const choice = (label, ...fields) => html("div", { class: "live-row live-choice" }, html("span", {}, label), ...fields);
    return html("div", { class: "live-panel live-examination live-halves" },
      html("div", {}, choice("Model", kind), choice("Fault", fault, html("span", { class: "live-steps" }, back, on)), lamps), html("div", {}, said, found));
  }

  Object.assign(live, { verdicts });
  live.mount("examination", build);
}
