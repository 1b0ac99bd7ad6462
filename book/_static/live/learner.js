// A Transformer that is trained in the page: its worker, its controls, and what is seen while it learns.
"use strict";
{
  const { html, svg, slider, range, scientific, percent } = live;

  // What runs beside the page; a report after every few updates, and whenever one is asked for.
  function work({ Run }) {
    const EVERY = 10, LAST = 3000;
    let run, going = false, asked, losses = [], sample = 0, perfect = 0, heard;

    function report() {
      const found = run.evaluate();
      const tensor = run.model.state[asked];
      perfect = found.share === 1 ? perfect + 1 : 0;
      if (perfect === 3 || run.step >= LAST) going = false;
      postMessage({
        ...found, step: run.step, losses: losses.splice(0), unseen: run.unseen, maps: run.maps(sample), going, heard,
        names: Object.keys(run.model.state), tensor: tensor && { name: asked, data: tensor.data, grad: tensor.grad },
      });
    }

    function advance(updates) {
      for (let i = 0; i < updates; i++) losses.push([run.step + 1, run.update()]);
      report();
    }

    function cycle() {
      if (!going) return;
      advance(EVERY - (run.step % EVERY));
      setTimeout(cycle); // lets the page's messages in
    }

    onmessage = ({ data }) => {
      heard = data.number;
      if (data.settings) [run, going, losses, perfect] = [new Run(data.settings), false, [], 0];
      if ("tensor" in data) asked = data.tensor;
      if ("sample" in data) sample = data.sample;
      if (data.updates) advance(data.updates);
      else if ("going" in data) {
        if ((going = data.going)) setTimeout(cycle);
      } else report();
    };
  }

  // A page that is opened from the disk may start no worker from a file, but one from a text.
  const start_worker = () =>
    new Worker(URL.createObjectURL(new Blob([`(${work})((${live.learning})());`], { type: "text/javascript" })));

  // The settings with their first values, as they stand in the page's address.
  const FIRST = {
    task: "reverse", digits: 5, d_model: 32, n_heads: 2, n_layers: 1, peak: 0.003, warmup: 100, dropout: 0, smoothing: 0,
    norm: "post", seed: 0, without: "", own: "",
  };
  const PARTS = { positions: "positions", mask: "the causal mask", scale: "the scale 1/√d_k", residuals: "the residual connections" };
  const SHOWN = 6;
  const OWN_PAIRS = 200, OWN_LENGTH = 12;

  function from_address() {
    const given = new URLSearchParams(location.search);
    return Object.fromEntries(Object.entries(FIRST).map(([name, first]) => {
      const text = given.get(name);
      return [name, text === null ? first : typeof first === "number" ? Number(text) : text];
    }));
  }

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

  const sign_of = (id) => (id === 10 ? "X" : id < 10 ? String(id) : ["start", "end", "pad"][id - 11]);

  function choice(label, values, first, changed) {
    const field = html("select", { "aria-label": label, change: changed }, ...values.map((value) => html("option", { value, selected: String(value) === String(first) }, String(value))));
    return { row: html("label", { class: "live-slider" }, html("span", {}, label), field), get value() { return field.value; } };
  }

  function build() {
    const given = from_address();
    const near = (values, value) => values.reduce((best, each) => (Math.abs(each - value) < Math.abs(best - value) ? each : best));
    const among = (label, values, value, show = String) => slider(label, values, near(values, value), show, restart);
    const share = (value) => `${Math.round(100 * value)}%`;

    const task = choice("Task", [...Object.keys(live.learning().TASKS), "own pairs"], given.own ? "own pairs" : given.task, restart);
    const digits = among("Digits", range(2, 8), given.digits);
    const d_model = among("d_model", [16, 32, 48, 64], given.d_model);
    const n_heads = among("Heads", [1, 2, 4], given.n_heads);
    const n_layers = among("Layers", [1, 2], given.n_layers, (number) => `${number} + ${number}`);
    const peak = among("Highest rate", [1e-4, 3e-4, 1e-3, 2e-3, 3e-3, 5e-3, 1e-2, 3e-2, 1e-1], given.peak, (rate) => scientific(rate, 0));
    const warmup = among("Warm-up", [1, 10, 30, 100, 200, 400], given.warmup, (number) => `${number} updates`);
    const dropout = among("Dropout", range(0, 0.5, 0.05), given.dropout, share);
    const smoothing = among("Smoothing", range(0, 0.3, 0.05), given.smoothing, share);
    const seed = among("Seed", range(0, 9), given.seed);
    const norm = choice("Norm", ["post", "pre"], given.norm, restart);
    const without = Object.entries(PARTS).map(([name, words]) => {
      const box = html("input", { type: "checkbox", checked: given.without.split(",").includes(name), change: restart });
      return { name, words, box, row: html("label", { class: "live-switch" }, box, ` without ${words}`) };
    });
    const own = html("textarea", { class: "live-own", rows: 4, maxlength: 6000, spellcheck: "false", "aria-label": "Own pairs, one on each line", change: restart }, given.own || "12 = 21\n345 = 543\n6789 = 9876\n");
    const own_row = html("div", { class: "live-own-pairs" }, html("p", {}, `A pair on each line, such as 123 = 321: up to ${OWN_PAIRS} pairs of digits and X. There is nothing unseen then; the pairs themselves are tested.`), own);

    const go = html("button", { type: "button", class: "live-button live-go", click: () => (running ? send({ going: false }) : send({ going: true })) }, "Train");
    const one = html("button", { type: "button", class: "live-button", click: () => send({ updates: 1 }) }, "One update");
    const again = html("button", { type: "button", class: "live-button", click: restart }, "From the start");
    const keep = html("button", { type: "button", class: "live-button", click: keep_run }, "Keep to compare");
    const link = html("a", { class: "live-address" }, "Link to this run");

    const [losses, shares] = [new live.Plot(), new live.Plot()];
    const samples = html("div", { class: "live-samples", role: "group", "aria-label": "Sequences that are never trained on" });
    const maps = html("div", { class: "live-maps" });
    const which = html("select", { "aria-label": "Tensor", change: () => send({ tensor: which.value }) });
    const grid = html("canvas", { class: "live-tensor", role: "img" });
    const tensor_said = html("output", { class: "live-tensor-words" });
    const said = html("output", { class: "live-said" });
    let worker, running = false, run, kept, seconds, since, sample = 0, sent = 0;

    function settings() {
      const parts = Object.fromEntries(without.map(({ name, box }) => [name, !box.checked]));
      const mine = task.value === "own pairs" ? pairs_of(own.value) : {};
      const values = Object.fromEntries(Object.entries({ digits, d_model, n_heads, n_layers, peak, warmup, dropout, smoothing, seed }).map(([name, each]) => [name, each.value]));
      return { ...values, task: task.value, norm_first: norm.value === "pre", parts, ...mine };
    }

    // What differs from the first settings: it makes the address, and the name of a run.
    function differences() {
      const now = settings();
      const said = { ...now, norm: norm.value, without: without.filter(({ box }) => box.checked).map(({ name }) => name).join(","), own: now.task === "own pairs" ? own.value : "" };
      return Object.entries(FIRST).filter(([name, first]) => String(said[name]) !== String(first)).map(([name]) => [name, said[name]]);
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
      const { error, ...now } = settings();
      own_row.hidden = now.task !== "own pairs";
      digits.input.disabled = !own_row.hidden;
      for (const button of [go, one]) button.disabled = Boolean(error);
      if (error || (now.pairs && !now.pairs.length)) {
        worker?.terminate();
        worker = undefined;
        set_running(false);
        for (const button of [go, one]) button.disabled = true;
        said.replaceChildren(error ?? "There is no pair to learn yet.");
        return;
      }
      worker?.terminate();
      worker = start_worker();
      worker.onmessage = ({ data }) => take(data);
      run = { losses: [], shares: [], name: differences().map(([name, value]) => `${name} ${value}`).join(", ") || "first settings" };
      [seconds, since, sample] = [0, undefined, 0];
      set_running(false);
      const query = new URLSearchParams(differences()).toString();
      link.setAttribute("href", `${location.pathname}${query && `?${query}`}#live-learner`);
      send({ settings: now, tensor: which.value || "src_embedding.weight" });
    }

    function keep_run() {
      kept = run.shares.length > 1 && { ...run, losses: [...run.losses], shares: [...run.shares] };
      draw();
    }

    function take({ step, losses: new_losses, share, answers, right, unseen, maps: found, going, heard, names, tensor }) {
      if (heard === sent) { // or else it was written before the latest message came
        if (since !== undefined) seconds += (performance.now() - since) / 1000;
        since = going ? performance.now() : undefined;
        set_running(going);
      }
      run.losses.push(...new_losses);
      if (run.shares.at(-1)?.[0] !== step) run.shares.push([step, share]);
      Object.assign(run, { step, share, answers, right, unseen, maps: found });
      if (names.length !== which.length || !which.length) {
        which.replaceChildren(...names.map((name) => html("option", { value: name, selected: name === tensor?.name }, name)));
      }
      draw();
      draw_samples();
      draw_maps();
      if (tensor) draw_tensor(tensor);
    }

    function draw() {
      const last = Math.max(100, run.losses.length, kept ? kept.losses.length : 0);
      const across = { from: 0, to: last, label: "update" };
      const smooth = (points) => points.map(([step], i) => {
        const recent = points.slice(Math.max(0, i - 9), i + 1);
        return [step, recent.reduce((sum, [, loss]) => sum + loss, 0) / recent.length];
      });
      const loss = run.losses.length ? smooth(run.losses).at(-1)[1] : undefined;
      const now = loss === undefined ? "Nothing is trained yet" : `After update ${run.step} the loss is ${loss.toFixed(2)}`;
      const count = `${run.right.filter(Boolean).length} of ${run.unseen.length}`;
      losses.axes(across, { from: 0, to: 4, label: "loss, nats a token" }, `${now}.`);
      shares.axes(across, { from: 0, to: 1.02, label: "right from end to end", show: (value) => share_words(value) }, `${count} are right.`);
      if (kept) {
        losses.curve(smooth(kept.losses), "live-other");
        shares.curve(kept.shares, "live-other");
      }
      losses.curve(smooth(run.losses), "live-main");
      shares.curve(run.shares, "live-main");
      const beside = kept ? ` Dashed: ${kept.name}, ${percent(kept.share)} after ${kept.step} updates. Now: ${run.name}.` : "";
      const time = seconds ? ` in ${seconds.toFixed(1)} s` : "";
      said.replaceChildren(`${now}${time}; ${count} ${settings().pairs ? "pairs" : "unseen sequences"} are right.${beside}`);
    }

    const share_words = (value) => `${Math.round(100 * value)}%`;

    function draw_samples() {
      const rows = run.unseen.slice(0, SHOWN).map(([src, wanted], number) => {
        const made = run.answers[number];
        const tokens = made.map((id, i) => html("span", { class: id === wanted[i] ? "live-token" : "live-token live-wrong" }, sign_of(id)));
        const words = made.length ? tokens : [html("span", { class: "live-label" }, "nothing")];
        const button = html("button", { type: "button", class: "live-sample", "aria-pressed": String(number === sample), click: () => { sample = number; send({ sample }); } },
          html("span", { class: "live-tokens" }, ...src.map((id) => html("span", { class: "live-token" }, sign_of(id)))), html("span", {}, "→"),
          html("span", { class: "live-tokens" }, ...words), html("span", { class: "live-verdict" }, run.right[number] ? "✓ right" : "✗ wrong"));
        return button;
      });
      const focused = [...samples.children].indexOf(document.activeElement);
      samples.replaceChildren(...rows);
      if (focused >= 0) rows[focused]?.focus();
    }

    function draw_maps() {
      const pictures = run.maps.flatMap(({ name, weights, n_heads, T, S }) => range(0, n_heads - 1).map((head) => {
        const cells = range(0, T * S - 1).map((cell) => {
          const weight = weights[head * T * S + cell];
          return svg("rect", { x: (cell % S) * 10, y: Math.floor(cell / S) * 10, width: 10, height: 10, style: `--weight:${weight.toFixed(3)}` });
        });
        const [stack, , number, kind] = name.split(".");
        const words = `${stack} ${Number(number) + 1}, ${kind.split("_")[0]}, head ${head + 1}`;
        return html("figure", { class: "live-map" }, svg("svg", { class: "live-weights", viewBox: `0 0 ${10 * S} ${10 * T}`, role: "img", "aria-label": `Attention of ${words}: ${T} queries, ${S} keys` }, ...cells), html("figcaption", {}, words));
      }));
      maps.replaceChildren(...pictures);
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
    const panel = html("div", { class: "live-panel live-learner" },
      html("div", { class: "live-row" }, task.row, digits.row, go, one, again, keep, link),
      own_row,
      html("div", { class: "live-halves" }, losses.svg, shares.svg), said,
      html("div", { class: "live-halves" }, samples, maps),
      html("details", {}, html("summary", {}, "Settings, and what to take away"),
        html("div", { class: "live-halves" }, stack(d_model, n_heads, n_layers, norm, seed), stack(peak, warmup, dropout, smoothing)),
        html("fieldset", { class: "live-kinds" }, html("legend", {}, "Take one away and see it fail"), ...without.map(({ row }) => row))),
      html("details", {}, html("summary", {}, "Look into a tensor"), html("label", { class: "live-slider" }, html("span", {}, "Tensor"), which), grid, tensor_said));
    restart();
    return panel;
  }

  live.start_worker = start_worker; // for the single runs of chapters
  live.mount("learner", build);
}
