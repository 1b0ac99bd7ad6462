// A Transformer that is trained in the page: its worker, its controls, and what is seen while it learns.
"use strict";
{
  const { html, svg, slider, range, scientific } = live;

  // What runs beside the page: one run, or two that learn in turn. A report comes after every few updates, and whenever
  // one is asked for.
  function work({ Run }) {
    const EVERY = 10, LAST = 3000;
    let runs = [], going = false, asked, sample = 0, heard;

    const begin = (settings) => {
      const run = new Run(settings);
      return { run, losses: [], perfect: 0, found: run.evaluate() };
    };
    const ended = ({ run, perfect }) => perfect >= 3 || run.step >= LAST;

    const report_of = ({ run, losses, found }) =>
      ({ ...found, step: run.step, losses: losses.splice(0), unseen: run.unseen, maps: run.maps(sample) });

    function report() {
      const reports = runs.map(report_of);
      going &&= !runs.every(ended);
      const { state } = runs[0].run.model;
      const tensor = state[asked];
      postMessage({ reports, going, heard, names: Object.keys(state), tensor: tensor && { name: asked, data: tensor.data, grad: tensor.grad } });
    }

    function advance(some, updates) {
      for (let i = 0; i < updates; i++) for (const { run, losses } of some) losses.push([run.step + 1, run.update()]);
      for (const each of some) {
        each.found = each.run.evaluate();
        each.perfect = each.found.share === 1 ? each.perfect + 1 : 0;
      }
      report();
    }

    function cycle() {
      if (!going) return;
      const learning = runs.filter((each) => !ended(each));
      if (!learning.length) return report();
      advance(learning, EVERY - (learning[0].run.step % EVERY));
      setTimeout(cycle); // lets the page's messages in
    }

    onmessage = ({ data }) => {
      heard = data.number;
      if (data.settings) [runs, going] = [data.settings.map(begin), false];
      if ("tensor" in data) asked = data.tensor;
      if ("sample" in data) sample = data.sample;
      if (data.updates) advance(runs, data.updates);
      else if ("going" in data) {
        going = data.going;
        if (going && runs.every(ended)) for (const each of runs) each.perfect = 0; // whoever presses on wants more
        if (going) setTimeout(cycle);
        else report(); // that it has stopped
      } else report();
    };
  }

  // A page that is opened from the disk may start no worker from a file, but one from a text.
  const start_worker = () =>
    new Worker(URL.createObjectURL(new Blob([`(${work})((${live.learning})());`], { type: "text/javascript" })));

  // The settings with their first values, as they stand in the page's address, and what each slider can be set to.
  const FIRST = {
    task: "reverse", digits: 5, d_model: 32, n_heads: 2, n_layers: 1, peak: 0.003, warmup: 100, dropout: 0, smoothing: 0,
    norm: "post", seed: 0, without: "", own: "",
  };
  const VALUES = {
    digits: range(2, 8), d_model: [16, 32, 48, 64], n_heads: [1, 2, 4], n_layers: [1, 2], warmup: [1, 10, 30, 100, 200, 400],
    peak: [1e-4, 3e-4, 1e-3, 2e-3, 3e-3, 5e-3, 1e-2, 3e-2, 1e-1], dropout: range(0, 0.5, 0.05), smoothing: range(0, 0.3, 0.05), seed: range(0, 9),
  };
  const SHARED = ["task", "digits", "seed", "own"]; // by two runs that are compared
  const PARTS = { positions: "positions", mask: "the causal mask", scale: "the scale 1/√d_k", residuals: "the residual connections" };
  const SHOWN = 6;
  const OWN_PAIRS = 200, OWN_LENGTH = 12;

  const near = (values, value) => values.reduce((best, each) => (Math.abs(each - value) < Math.abs(best - value) ? each : best));

  // The settings of an address; a number that no slider has becomes the nearest that one has.
  function from_address(query) {
    const given = new URLSearchParams(query);
    return Object.fromEntries(Object.entries(FIRST).map(([name, first]) => {
      const text = given.get(name);
      if (text === null) return [name, first];
      return [name, VALUES[name] ? near(VALUES[name], Number(text)) : text];
    }));
  }

  // What differs from the first settings: it makes the address, and the name of a run.
  const differences = (values) => Object.entries(values).filter(([name, value]) => String(value) !== String(FIRST[name]));
  const name_of = (values) =>
    differences(values).filter(([name]) => !SHARED.includes(name))
      .map(([name, value]) => `${name} ${String(value).replaceAll(",", " and ")}`).join(", ") || "first settings";

  // "123 = 321", a pair a line, of digits and X.
  function pairs_of(text) {
    const ids = (word) => [...word.trim()].map((sign) => (sign === "X" ? 10 : Number(sign)));
    const form = new RegExp(`^\\s*[0-9X]{1,${OWN_LENGTH}}\\s*=\\s*[0-9X]{1,${OWN_LENGTH}}\\s*$`);
    const lines = text.split("\n").filter((line) => line.trim());
    const bad = lines.find((line) => !form.test(line));
    if (bad !== undefined) return { error: `“${bad.trim().slice(0, 40)}” is not a pair such as 123 = 321, with 1 to ${OWN_LENGTH} digits or X on each side.` };
    if (lines.length > OWN_PAIRS) return { error: `${lines.length} pairs; at most ${OWN_PAIRS} are learned.` };
    return { pairs: lines.map((line) => line.split("=").map(ids)) };
  }

  // A cell for a token, as wide as any other; what no answer should hold has a sign for the eye and a name for the ear.
  function token_cell(id, wrong) {
    const state = wrong ? "live-token live-wrong" : "live-token";
    if (id <= 10) return html("span", { class: state }, id === 10 ? "X" : String(id));
    const name = ["start", "end", "pad"][id - 11];
    return html("span", { class: `${state} live-sign`, title: name }, html("span", { "aria-hidden": "true" }, "▸■·"[id - 11]), html("span", { class: "live-spoken" }, name));
  }

  function choice(label, values, first, changed) {
    const field = html("select", { "aria-label": label, change: changed }, ...values.map((value) => html("option", { value, selected: String(value) === String(first) }, String(value))));
    return { row: html("label", { class: "live-slider" }, html("span", {}, label), field), get value() { return field.value; } };
  }

  function build() {
    const given = from_address(location.search);
    const among = (label, name, show = String) => slider(label, VALUES[name], given[name], show, restart);
    const share = (value) => `${Math.round(100 * value)}%`;

    const task = choice("Task", [...Object.keys(live.learning().TASKS), "own pairs"], given.own ? "own pairs" : given.task, restart);
    const digits = among("Digits", "digits");
    const d_model = among("d_model", "d_model");
    const n_heads = among("Heads", "n_heads");
    const n_layers = among("Layers", "n_layers", (number) => `${number} + ${number}`);
    const peak = among("Highest rate", "peak", (rate) => scientific(rate, 0));
    const warmup = among("Warm-up", "warmup", (number) => (number === 1 ? "1 update" : `${number} updates`));
    const dropout = among("Dropout", "dropout", share);
    const smoothing = among("Smoothing", "smoothing", share);
    const seed = among("Seed", "seed");
    const norm = choice("Norm", ["post", "pre"], given.norm, restart);
    const without = Object.entries(PARTS).map(([name, words]) => {
      const box = html("input", { type: "checkbox", checked: given.without.split(",").includes(name), change: restart });
      return { name, words, box, row: html("label", { class: "live-switch" }, box, ` without ${words}`) };
    });
    const own = html("textarea", { class: "live-own", rows: 4, spellcheck: "false", "aria-label": "Own pairs, one on each line", change: restart }, given.own || "12 = 21\n345 = 543\n6789 = 9876\n");
    const own_row = html("div", { class: "live-own-pairs" }, html("p", {}, `A pair on each line, such as 123 = 321: up to ${OWN_PAIRS} pairs of digits and X. There is nothing unseen then; the pairs themselves are tested.`), own);

    const go = html("button", { type: "button", class: "live-button live-go", click: () => (running ? send({ going: false }) : send({ going: true })) }, "Train");
    const one = html("button", { type: "button", class: "live-button", click: () => send({ updates: 1 }) }, "One update");
    const again = html("button", { type: "button", class: "live-button", click: restart }, "From the start");
    const compare = html("button", { type: "button", class: "live-button", click: toggle_comparison });
    const link = html("a", { class: "live-address" }, "Link to this run");

    const [losses, shares] = [new live.Plot(), new live.Plot()];
    const samples = html("div", { class: "live-samples", role: "group", "aria-label": "Sequences that are never trained on" });
    const maps = html("div");
    const which = html("select", { "aria-label": "Tensor", change: () => send({ tensor: which.value }) });
    const grid = html("canvas", { class: "live-tensor", role: "img" });
    const tensor_said = html("output", { class: "live-tensor-words" });
    const said = html("output", { class: "live-said" });
    let worker, running = false, runs, seconds, since, sample = 0, sent = 0;
    let beside = new URLSearchParams(location.search).has("beside") ? from_address(new URLSearchParams(location.search).get("beside")) : undefined;

    // What is chosen, under the names of the address.
    const chosen = () => ({
      ...Object.fromEntries(Object.entries({ digits, d_model, n_heads, n_layers, peak, warmup, dropout, smoothing, seed }).map(([name, each]) => [name, each.value])),
      task: task.value, norm: norm.value, without: without.filter(({ box }) => box.checked).map(({ name }) => name).join(","),
      own: task.value === "own pairs" ? own.value : "",
    });

    // The same as the worker wants it.
    function settings_of({ norm, without, own, ...values }) {
      const parts = Object.fromEntries(Object.keys(PARTS).map((name) => [name, !without.split(",").includes(name)]));
      return { ...values, norm_first: norm === "pre", parts, ...(values.task === "own pairs" ? pairs_of(own) : {}) };
    }

    // What runs beside it, from the same seed and on the same task.
    const other = (now) => ({ ...beside, ...Object.fromEntries(SHARED.map((name) => [name, now[name]])) });

    function toggle_comparison() {
      beside = beside ? undefined : chosen();
      if (beside) settings_box.open = true;
      restart();
    }

    function send(message) {
      if ("going" in message || message.updates) since ??= performance.now();
      if (message.going) set_running(true);
      worker?.postMessage({ ...message, number: ++sent });
    }

    function set_running(value) {
      running = value;
      go.replaceChildren(running ? "Pause" : "Train");
      one.disabled = running;
    }

    function restart() {
      const now = chosen();
      const { error, pairs } = settings_of(now);
      own_row.hidden = now.task !== "own pairs";
      digits.input.disabled = !own_row.hidden;
      compare.replaceChildren(beside ? "Stop comparing" : "Compare");
      worker?.terminate();
      worker = undefined;
      set_running(false);
      const impossible = error ?? (pairs && !pairs.length ? "There is no pair to learn yet." : undefined);
      for (const button of [go, one]) button.disabled = Boolean(impossible);
      if (impossible) return clear(impossible);
      worker = start_worker();
      worker.onmessage = ({ data }) => take(data);
      const all = beside ? [now, other(now)] : [now];
      runs = all.map((values) => ({ losses: [], shares: [], name: name_of(values) }));
      [seconds, since, sample] = [0, undefined, 0];
      const shared_left_out = beside && differences(beside).filter(([name]) => !SHARED.includes(name));
      const query = new URLSearchParams([...differences(now), ...(beside ? [["beside", new URLSearchParams(shared_left_out)]] : [])]).toString();
      link.setAttribute("href", `${location.pathname}${query && `?${query}`}#live-learner`);
      send({ settings: all.map(settings_of), tensor: which.value || "src_embedding.weight" });
    }

    // Without a task nothing is left of the run before.
    function clear(words) {
      for (const plot of [losses, shares]) plot.clear(words);
      for (const part of [samples, maps, tensor_said]) part.replaceChildren();
      grid.width = grid.height = 0;
      grid.setAttribute("aria-label", words);
      said.replaceChildren(words);
    }

    function take({ reports, going, heard, names, tensor }) {
      if (heard === sent) { // or else it was written before the latest message came
        if (since !== undefined) seconds += (performance.now() - since) / 1000;
        since = going ? performance.now() : undefined;
        set_running(going);
      }
      reports.forEach(({ losses: new_losses, ...report }, i) => {
        const run = runs[i];
        run.losses.push(...new_losses);
        if (run.shares.at(-1)?.[0] !== report.step) run.shares.push([report.step, report.share]);
        Object.assign(run, report);
      });
      if (names.length !== which.length) {
        const before = which.value; // it may have been chosen while this report was under way
        which.replaceChildren(...names.map((name) => html("option", { value: name, selected: name === before }, name)));
        if (which.value !== tensor?.name) send({ tensor: which.value });
      }
      draw();
      draw_samples();
      draw_maps();
      if (tensor) draw_tensor(tensor);
    }

    const smooth = (points) => points.map(([step], i) => {
      const recent = points.slice(Math.max(0, i - 9), i + 1);
      return [step, recent.reduce((sum, [, loss]) => sum + loss, 0) / recent.length];
    });
    const loss_of = ({ losses }) => (losses.length ? smooth(losses.slice(-10)).at(-1)[1] : undefined);
    const right_of = ({ right, unseen }) => `${right.filter(Boolean).length} of ${unseen.length}`;

    function draw() {
      const [run, second] = runs;
      const last = Math.max(100, ...runs.map(({ losses }) => losses.length));
      const across = { from: 0, to: last, label: "update" };
      const loss = loss_of(run);
      const now = loss === undefined ? "Nothing is trained yet" : `After update ${run.step} the loss is ${loss.toFixed(2)}`;
      losses.axes(across, { from: 0, to: 4, label: "loss, nats a token" }, `${now}.`);
      shares.axes(across, { from: 0, to: 1.02, label: "right from end to end", show: share }, `${right_of(run)} are right.`);
      for (const each of [...runs].reverse()) {
        const state = each === run ? "live-main" : "live-other";
        losses.curve(smooth(each.losses), state);
        shares.curve(each.shares, state);
      }
      const time = seconds ? ` in ${seconds.toFixed(1)} s` : "";
      const words = `${now}${time}; ${right_of(run)} ${own_row.hidden ? "unseen sequences" : "pairs"} are right.`;
      const second_loss = second && loss_of(second);
      const so_far = second_loss === undefined ? "" : `, loss ${second_loss.toFixed(2)}, ${right_of(second)} right after update ${second.step}`;
      said.replaceChildren(second ? `${words} Dashed, from the same seed: ${second.name}${so_far}. Solid: ${run.name}.` : words);
    }

    // One run's answer to a sequence, with a line in the style of its curve.
    function answer_of({ answers, right, unseen }, number, style) {
      const made = answers[number].map((id, i) => token_cell(id, id !== unseen[number][1][i]));
      const key = style ? [html("span", { class: `live-key live-key-${style}` }, html("span", { class: "live-spoken" }, `${style}: `))] : [];
      return html("span", { class: "live-answer" }, ...key, html("span", {}, "→"),
        html("span", { class: "live-tokens" }, ...(made.length ? made : [html("span", { class: "live-label" }, "nothing")])),
        html("span", { class: "live-verdict" }, right[number] ? "✓" : "✗", html("span", { class: "live-spoken" }, right[number] ? " right" : " wrong")));
    }

    // A row stays the same element from report to report, or else a slow click would begin on one and end on another.
    function draw_samples() {
      const shown = runs[0].unseen.slice(0, SHOWN);
      while (samples.childElementCount > shown.length) samples.lastChild.remove();
      shown.forEach(([src], number) => {
        const row = samples.children[number] ?? samples.appendChild(html("button", { type: "button", class: "live-sample", click: () => choose_sample(number) }));
        row.replaceChildren(html("span", { class: "live-tokens" }, ...src.map((id) => token_cell(id))),
          html("span", { class: "live-answers" }, ...runs.map((run, i) => answer_of(run, number, runs.length > 1 && ["solid", "dashed"][i]))));
      });
      mark_sample();
    }

    const mark_sample = () => [...samples.children].forEach((row, number) => row.setAttribute("aria-pressed", String(number === sample)));

    function choose_sample(number) {
      sample = number;
      mark_sample();
      send({ sample });
    }

    function draw_maps() {
      const map = ({ name, weights, n_heads, T, S }, head) => {
        const cells = range(0, T * S - 1).map((cell) => {
          const weight = weights[head * T * S + cell];
          return svg("rect", { x: (cell % S) * 10, y: Math.floor(cell / S) * 10, width: 10, height: 10, style: `--weight:${weight.toFixed(3)}` });
        });
        const [stack, , number, kind] = name.split(".");
        const words = `${stack} ${Number(number) + 1}, ${kind.split("_")[0]}, head ${head + 1}`;
        return html("figure", { class: "live-map" }, svg("svg", { class: "live-weights", viewBox: `0 0 ${10 * S} ${10 * T}`, role: "img", "aria-label": `Attention of ${words}: ${T} queries, ${S} keys` }, ...cells), html("figcaption", {}, words));
      };
      maps.replaceChildren(...runs.flatMap((run, i) => {
        const title = runs.length > 1 ? [html("p", { class: "live-label" }, `${["Solid", "Dashed"][i]}: ${run.name}`)] : [];
        return [...title, html("div", { class: "live-maps" }, ...run.maps.flatMap((each) => range(0, each.n_heads - 1).map((head) => map(each, head))))];
      }));
    }

    // A square for each number: the accent's color for positive ones, the warning's for negative ones.
    function draw_tensor({ name, data, grad }) {
      const columns = name.endsWith("weight") && !name.includes("norm") ? (name.includes("w_2") ? 2 : 1) * d_model.value : data.length;
      const rows = data.length / columns;
      const largest = data.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-12);
      const style = getComputedStyle(grid);
      const [positive, negative] = [style.getPropertyValue("--live-accent"), style.getPropertyValue("--pst-color-danger")];
      const unit = Math.max(2, Math.floor(512 / columns));
      [grid.width, grid.height] = [columns * unit, rows * unit];
      const context = grid.getContext("2d");
      data.forEach((value, i) => {
        context.globalAlpha = Math.abs(value) / largest;
        context.fillStyle = value > 0 ? positive : negative;
        context.fillRect((i % columns) * unit, Math.floor(i / columns) * unit, unit, unit);
      });
      const length = (numbers) => Math.sqrt(numbers.reduce((sum, value) => sum + value * value, 0));
      const words = `${name}, ${rows} × ${columns}: entries up to ±${largest.toFixed(2)}, norm ${length(data).toFixed(2)}, norm of its latest gradient ${length(grad).toFixed(3)}`;
      grid.setAttribute("aria-label", words);
      tensor_said.replaceChildren(`${words}.`);
    }

    const stack = (...parts) => html("div", { class: "live-sliders live-stack" }, ...parts.map(({ row }) => row));
    const settings_box = html("details", {}, html("summary", {}, "Settings, and what to take away"),
      html("div", { class: "live-halves" }, stack(d_model, n_heads, n_layers, norm, seed), stack(peak, warmup, dropout, smoothing)),
      html("fieldset", { class: "live-kinds" }, html("legend", {}, "Take one away and see it fail"), ...without.map(({ row }) => row)));
    const legend = html("p", { class: "live-label" }, "▸ and · are the tokens start and padding, which no answer should hold.");
    const panel = html("div", { class: "live-panel live-learner" },
      html("div", { class: "live-row" }, task.row, digits.row, go, one, again, compare, link),
      own_row,
      html("div", { class: "live-halves" }, losses.svg, shares.svg), said,
      html("div", { class: "live-halves" }, html("div", {}, samples, legend), maps), settings_box,
      html("details", {}, html("summary", {}, "Look into a tensor"), html("label", { class: "live-slider" }, html("span", {}, "Tensor"), which), grid, tensor_said));
    restart();
    return panel;
  }

  live.start_worker = start_worker; // for the single runs of chapters
  live.mount("learner", build);
}
