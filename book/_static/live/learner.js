// A Transformer that is trained in the page: its worker, its controls, and the drawn model that learns.
"use strict";
{
  const { html, svg, slider, range, scientific, percent } = live;

  // What runs beside the page: one run, or two that learn in turn. A report comes after every few updates, and whenever
  // one is asked for. It shows the model as it is, or as it was after update `at`.
  function work({ Run }) {
    const EVERY = 10, LAST = 3000, KEPT = 60, SHOWN = 6;
    let runs = [], going = false, heard, until, at, src;

    function keep(each) {
      const { run, past } = each;
      const { share, answers, right } = run.evaluate();
      const state = Object.fromEntries(Object.entries(run.model.state).map(([name, { data }]) => [name, { data: data.slice() }]));
      const now = { step: run.step, share, total: right.length, answers: answers.slice(0, SHOWN), right: right.slice(0, SHOWN), state };
      each.perfect += share === 1;
      each.past = [...past.length < KEPT ? past : past.filter((_, i) => i % 2 === 0), now];
    }

    function begin(settings) {
      const each = { run: new Run(settings), losses: [], perfect: 0, past: [] };
      keep(each);
      return each;
    }

    const ended = ([{ run, perfect }]) => perfect >= 2 || run.step >= LAST || run.step >= until;

    function report_of({ run, losses, past }) {
      const { state, ...found } = past.find(({ step }) => step === at) ?? past.at(-1);
      return { ...found, losses: losses.splice(0), unseen: run.unseen.slice(0, SHOWN), view: run.look(src ?? run.unseen[0][0], state) };
    }

    function report() {
      going &&= !ended(runs);
      postMessage({ reports: runs.map(report_of), kept: runs[0].past.map(({ step }) => step), going, heard });
    }

    function advance(updates) {
      for (let i = 0; i < updates; i++) for (const { run, losses } of runs) losses.push([run.step + 1, run.update()]);
      runs.forEach(keep);
      report();
    }

    function cycle() {
      if (!going) return;
      const { step } = runs[0].run;
      advance(Math.min(EVERY - (step % EVERY), until - step));
      setTimeout(cycle); // lets the page's messages in
    }

    onmessage = ({ data }) => {
      heard = data.number;
      if (data.settings) [runs, going] = [data.settings.map(begin), false];
      if ("src" in data) src = data.src;
      if ("at" in data) at = data.at;
      if (data.updates) return advance(data.updates);
      if ("going" in data) {
        ({ going, until = Infinity } = data);
        if (going && ended(runs)) runs[0].perfect = 0; // whoever presses on wants more
        if (going) return setTimeout(cycle);
      }
      report();
    };
  }

  // A page that is opened from the disk may start no worker from a file, but one from a text.
  const start_worker = () =>
    new Worker(URL.createObjectURL(new Blob([`(${work})((${live.learning})());`], { type: "text/javascript" })));

  // What can be taken away: its name, what its absence breaks, why nothing breaks where nothing does, and who tells more.
  const PARTS = {
    positions: ["positions", "attention sees a bag of digits, not their order", "this task can do without an order", "02-embedding", "Chapter 2"],
    mask: ["the mask", "in training it read each answer off its own input, and when it writes there is none to read", "it learned more than to copy its own input", "03-attention", "Chapter 3"],
    scale: ["the scale", "large scores make a softmax that gives everything to one key, and no gradient to the others", "a head of so few numbers keeps its scores small by itself", "03-attention", "Chapter 3"],
    residuals: ["residuals", "attention mixes the positions, and no sum keeps each one's own token", "two or three sublayers do not mix all positions into one", "04-layers", "Chapter 4"],
    cross: ["cross-attention", "the decoder never sees what it is asked, so it writes what is likely and not what is right", "this needs no input", "05-model", "Chapter 5"],
    head: ["a head", "with the first head of each attention gone, the others do not do its work", "the other heads do the work of the first", "14-looking-inside", "Chapter 14"],
  };

  // What can be chosen, under the names of the page's address, and what is chosen at first.
  const VALUES = {
    task: Object.keys(live.learning().TASKS), digits: range(2, 8), d_model: [16, 32, 48, 64], heads: [1, 2, 4], layers: [1, 2],
    norm: ["post", "pre"], peak: [1e-4, 3e-4, 1e-3, 2e-3, 3e-3, 5e-3, 1e-2, 3e-2, 1e-1], warmup: [1, 10, 30, 100, 200, 400],
    dropout: range(0, 0.5, 0.05), smoothing: range(0, 0.3, 0.05), seed: range(0, 9), without: Object.keys(PARTS), updates: range(1, 3000),
  };
  const FIRST = {
    task: "reverse", digits: 5, d_model: 32, heads: 2, layers: 1, norm: "post", peak: 0.003, warmup: 100,
    dropout: 0, smoothing: 0, seed: 0, without: "",
  };

  const GUIDE = /^(utm_.*|fbclid|gclid|ref)$/; // what other sites add to a link, to count who follows it

  // The settings of an address, and what in it cannot be chosen.
  function from_address(query) {
    const [found, wrong] = [{ ...FIRST }, []];
    const quoted = (value) => (typeof value === "string" ? `“${value}”` : value); // a name may have a comma
    for (const [name, text] of new URLSearchParams(query)) {
      if (GUIDE.test(name)) continue;
      const values = VALUES[name] ?? [];
      const value = values.find((each) => String(each) === text);
      if (value !== undefined) found[name] = value;
      else if (!values.length) wrong.push(`no setting is called “${name.slice(0, 40)}”`);
      else wrong.push(`${name} cannot be “${text.slice(0, 40)}”, but ${values.length > 20 ? `1 to ${values.length}` : values.map(quoted).join(", ")}`);
    }
    return { found, wrong };
  }

  function settings_of({ heads, layers, norm, without, ...values }) {
    return { ...values, n_heads: heads, n_layers: layers, norm_first: norm === "pre", parts: without ? { [without]: false } : {} };
  }

  const END = 12;
  const sign = (id) => (id >= 0 && id < 10 ? String(id) : { 10: "X", 11: "▸", 12: "■" }[id] ?? "·");
  const name = (id) => ({ 11: "start", 12: "end", 13: "padding" }[id] ?? sign(id));
  const most = (numbers) => numbers.indexOf(Math.max(...numbers));

  // A cell for a token; what is not a digit has a name for the ear.
  function token_cell(id, state = "") {
    const spoken = sign(id) === name(id) ? [sign(id)] : [html("span", { "aria-hidden": "true" }, sign(id)), html("span", { class: "live-spoken" }, name(id))];
    return html("span", { class: `live-token ${state}` }, ...spoken);
  }

  // The drawn model ------------------------------------------------------------------------------------

  const LETTER = 12; // a row with its token beside it is no lower

  // One head's weights. The tokens that ask stand beside the rows, and those that are looked at above the columns, in the margin.
  function map_of(rows, columns, unit) {
    const cells = range(0, rows * columns - 1).map((i) => svg("rect", { x: unit * (i % columns), y: unit * Math.floor(i / columns), width: unit, height: unit }));
    const across = range(0, columns - 1).map((s) => svg("text", { x: unit * (s + 0.5), y: -4 }));
    const down = range(0, unit < LETTER ? -1 : rows - 1).map((t) => svg("text", { x: -6, y: unit * (t + 0.5) + 4 }));
    const band = svg("rect", { class: "live-band", x: 0, width: unit * columns, height: unit });
    const [width, height] = [unit * columns, unit * rows];
    const picture = svg("svg", { class: `live-map live-weights ${down.length ? "live-roomy" : ""}`, width, height, viewBox: `0 0 ${width} ${height}`, role: "img" }, ...cells, ...across, ...down, band);

    function show({ weights, T, S }, head, queries, keys, step, words) {
      cells.forEach((cell, i) => {
        const [t, s] = [Math.floor(i / columns), i % columns];
        cell.style.setProperty("--weight", t < T && s < S ? weights[(head * T + t) * S + s].toFixed(2) : 0);
      });
      across.forEach((text, s) => (text.textContent = s < S ? sign(keys[s]) : ""));
      down.forEach((text, t) => (text.textContent = t < T ? sign(queries[t]) : ""));
      band.setAttribute("y", unit * Math.min(step ?? 0, T - 1));
      band.style.display = step === undefined ? "none" : "";
      const looks = range(0, T - 1).map((t) => `${name(queries[t])} at ${name(keys[most(weights.slice((head * T + t) * S, (head * T + t + 1) * S))])}`);
      picture.setAttribute("aria-label", `${words}, head ${head + 1}: most looks ${looks.join(", ")}`);
    }
    return { picture, show };
  }

  // Encoder and decoder from the bottom up, for inputs of so many tokens; `show` puts in what a model makes of one.
  function machine({ d_model, heads, layers, norm, without }, length) {
    const maps = {};
    const room = Math.floor(165 / (2 * length + 1)); // for a cell, with two maps side by side and tokens beside their rows
    const unit = room < LETTER ? LETTER - 1 : Math.min(15, room);
    const part = (key, words) => html(key === without ? "del" : "span", {}, words);
    const tokens = (words) => {
      const row = html("div", { class: "live-tokens" });
      return { row, box: html("div", { class: "live-entry" }, html("span", {}, words), row) };
    };
    const sum = () => (norm === "pre" ? [part("residuals", "add")] : [part("residuals", "add"), " & norm"]);

    function sublayer(side, layer, kind, words, rows, columns) {
      const inside = [];
      if (rows && kind !== without) {
        const all = (maps[`${side}.layers.${layer}.${kind}_attention`] = range(1, heads).map(() => map_of(rows, columns, unit)));
        inside.push(html("div", { class: "live-maps" }, ...all.map(({ picture }, head) => (head === 0 && without === "head" ? html("del", {}, picture) : picture))));
      }
      const title = html("div", { class: "live-title" }, ...(norm === "pre" ? ["norm, "] : []), ...words, ...(rows ? [" ", part("scale", "÷ √dₖ")] : []));
      const state = kind === without ? "live-gone" : "";
      return html("div", { class: `live-sublayer live-${kind} ${state} ${without === "residuals" ? "live-straight" : ""}` },
        html("div", { class: "live-block" }, ...inside, title), html("div", { class: "live-add" }, ...sum()));
    }

    const network = `feed-forward, ${d_model} → ${2 * d_model} → ${d_model}`;
    const last = norm === "pre" ? [html("div", { class: "live-add" }, "norm")] : [];
    const embedding = () => html("div", { class: "live-block live-title of-weight" }, "embedding ", part("positions", "+ positions"));
    const [given, read, written] = [tokens("what is read"), tokens("what is written so far"), tokens("what is written next")];
    const encoder = range(0, layers - 1).flatMap((n) => [
      sublayer("encoder", n, "self", ["self-attention"], length, length), sublayer("encoder", n, "feed", [network])]);
    const decoder = range(0, layers - 1).flatMap((n) => [
      sublayer("decoder", n, "self", [part("mask", "masked"), " self-attention"], length + 1, length + 1),
      sublayer("decoder", n, "cross", ["cross-attention"], length + 1, length), sublayer("decoder", n, "feed", [network])]);
    const element = html("div", { class: "live-machine", role: "group", "aria-label": "The model, drawn from the bottom up" },
      html("div", { class: "live-side" }, given.box, embedding(), ...encoder, ...last, html("div", { class: "live-add live-memory" }, "encoder’s output")),
      html("div", { class: "live-side" }, read.box, embedding(), ...decoder, ...last, html("div", { class: "live-block live-title of-logits" }, "logits of 14 tokens, softmax"), written.box));

    function show({ src, read: ids, written: made, maps: found }, step) {
      given.row.replaceChildren(...src.map((id) => token_cell(id)));
      read.row.replaceChildren(...ids.map((id, t) => token_cell(id, t === step ? "live-current" : t > step ? "live-later" : "")));
      written.row.replaceChildren(...made.map((id, t) => token_cell(id, t === step ? "live-current" : t > step ? "live-later" : "")));
      for (const each of found) {
        const [side, , layer, kind] = each.name.split(".");
        const words = `${side} ${Number(layer) + 1}, ${kind.replace("_", "-")}`;
        maps[each.name].forEach((map, head) =>
          map.show(each, head, side === "encoder" ? src : ids, side === "encoder" || kind.startsWith("cross") ? src : ids, side === "decoder" ? step : undefined, words));
      }
    }
    return { element, show };
  }

  // The page ------------------------------------------------------------------------------------------

  function choice(label, values, first, changed) {
    const field = html("select", { "aria-label": label, change: changed }, ...values.map((value) => html("option", { value, selected: value === first }, value)));
    return { row: html("label", { class: "live-slider" }, html("span", {}, label), field), get value() { return field.value; } };
  }

  function build() {
    const { found: given, wrong } = from_address(location.search);
    const differs = (values) => Object.entries(values).filter(([key, value]) => value !== FIRST[key]);
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const share = (value) => `${Math.round(100 * value)}%`;
    const anew = () => begin(true);
    const among = (label, key, show = String) => slider(label, VALUES[key], given[key], show, anew);
    const button = (words, click, kind = "") => html("button", { type: "button", class: `live-button ${kind}`, click }, words);

    const controls = {
      task: choice("Task", VALUES.task, given.task, other_task), digits: slider("Digits", VALUES.digits, given.digits, String, other_task),
      d_model: among("d_model", "d_model"), heads: among("Heads", "heads"), layers: among("Layers", "layers", (number) => `${number} + ${number}`),
      norm: choice("Norm", VALUES.norm, given.norm, anew), peak: among("Highest rate", "peak", (rate) => scientific(rate, 0)),
      warmup: among("Warm-up", "warmup", (number) => (number === 1 ? "1 update" : `${number} updates`)),
      dropout: among("Dropout", "dropout", share), smoothing: among("Smoothing", "smoothing", share), seed: among("Seed", "seed"),
    };
    let { without } = given;
    const chosen = () => ({ ...Object.fromEntries(Object.entries(controls).map(([key, { value }]) => [key, value])), without });

    const go = button("Train", () => (running ? send({ going: false }) : worker ? send({ going: true, at: undefined }) : begin(true)), "live-go");
    const one = button("One update", () => { if (!worker) begin(false); send({ updates: 1, at: undefined }); });
    const again = button("From the start", () => begin(false));
    const taken = ["", ...Object.keys(PARTS)].map((part) => ({ part, button: button(part ? PARTS[part][0] : "nothing", () => { without = part; begin(true); }) }));
    const said = html("output", { class: "live-said" });
    const refused = html("p", { class: "live-note live-refused", role: "status" }, wrong.length ? `The address of this page asks for what is not here: ${wrong.join("; ")}.` : "");

    const field = live.text_field({ class: "live-digits", "aria-label": "Your digits", inputmode: "numeric" }, 8, ask);
    const answer = html("div", { class: "live-tokens", role: "group", "aria-label": "The answer, token by token" });
    const verdict = html("span", { class: "live-verdict" });
    const bars = html("div", { class: "live-likely", role: "img" });
    const looked = html("p", { class: "live-looked" });
    const samples = html("div", { class: "live-samples", role: "group", "aria-label": "Sequences that are never trained on" });
    const [losses, shares] = [new live.Plot("", 330, 150), new live.Plot("", 330, 150)];
    const back = html("input", { type: "range", "aria-label": "Back through the updates", min: 0, max: 0, value: 0, input: () => go_back(Number(back.value)) });
    const back_to = html("output", { class: "live-place" });
    const which = html("div", { class: "live-row live-which", role: "group", "aria-label": "Which model is drawn" });
    const drawn = html("div", { class: "live-drawn" });

    let worker, film, running = false, learning, runs, kept, model, drawn_for, asked, step = 0, player, seconds, since, stopped = false, sent = 0, shown = 0;
    const view = () => runs[shown].now.view;

    function send(message) {
      if ("going" in message || message.updates) since ??= performance.now();
      if (message.going) set_running(true);
      worker.postMessage({ ...message, number: ++sent });
    }

    function set_running(value) {
      running = value;
      go.replaceChildren(running ? "Pause" : "Train");
      one.disabled = running;
    }

    function prepare() {
      const now = chosen();
      runs = (without ? ["", without] : [""]).map((part) => ({ part, name: part ? `without ${PARTS[part][0]}` : "whole", settings: { ...now, without: part }, losses: [], shares: [] }));
      [seconds, since, drawn_for, shown] = [0, undefined, undefined, runs.length - 1];
      for (const { part, button } of taken) button.setAttribute("aria-pressed", String(part === without));
      which.replaceChildren(...runs.length > 1 ? ["Drawn:", ...runs.map(({ name }, i) => button(name, () => { shown = i; draw(); }))] : []);
    }

    // A new run from the seed. With `go` it trains, until it has learned or has made so many updates.
    function begin(go, until) {
      clearInterval(film);
      worker?.terminate();
      worker = start_worker();
      worker.onmessage = ({ data }) => take(data);
      prepare();
      set_running(false);
      send({ settings: runs.map(({ settings }) => settings_of(settings)), src: asked, at: undefined });
      if (go) send({ going: true, until });
      tell_address();
    }

    function other_task() {
      asked = undefined;
      begin(true);
    }

    // The address of the page has what is chosen, and how far a run went that stands.
    function tell_address() {
      const updates = !running && runs[0].losses.length ? [["updates", runs[0].losses.length]] : [];
      const query = new URLSearchParams([...differs(chosen()), ...updates]).toString();
      history.replaceState(null, "", `${location.pathname}${query && `?${query}`}${location.hash}`);
    }

    function take({ reports, going, heard, kept: steps }) {
      if (heard === sent) { // or else it was written before the latest message came
        if (since !== undefined) seconds += (performance.now() - since) / 1000;
        since = going ? performance.now() : undefined;
        set_running(going);
      }
      [kept, learning] = [steps, going];
      reports.forEach((report, i) => {
        const run = runs[i];
        run.losses.push(...report.losses);
        if (report.step > (run.shares.at(-1)?.[0] ?? -1)) run.shares.push([report.step, report.share]);
        run.now = report;
      });
      if (worker && heard === sent && !going) tell_address();
      draw();
    }

    // Some recorded updates are played while nothing is trained yet.
    function play_film() {
      prepare();
      const { messages } = live.recorded;
      let frame = 0;
      const next = () => {
        take(messages[frame]);
        if (++frame === messages.length) clearInterval(film);
      };
      const end = () => { while (!worker && !stopped && frame < messages.length) next(); };
      next();
      if (still) return end();
      film = setInterval(next, 200);
      addEventListener("beforeprint", end); // paper shows what it has learned
    }

    function go_back(place) {
      if (worker) return send({ at: place === kept.length - 1 ? undefined : kept[place] });
      clearInterval(film);
      stopped = true; // a reader has chosen an update, on paper as well
      runs[0].now = live.recorded.messages[place].reports[0];
      draw();
    }

    // What a reader asks is answered token by token; a model that has not learned begins to.
    function ask() {
      const text = field.input.value;
      const words = /[^0-9]/.test(text) ? "Only digits are read." : text.length < 2 || text.length > 8 ? "Type 2 to 8 digits." : "";
      complain(words);
      if (!words) answer_to([...text].map(Number));
    }

    // While the field is marked, the style hides the answer to what it held before.
    function complain(words) {
      field.input.setAttribute("aria-invalid", Boolean(words));
      field.note.replaceChildren(words);
    }

    function answer_to(src) {
      asked = src;
      if (worker) send({ src });
      else begin(true);
      clearInterval(player);
      step = still ? src.length : 0;
      if (!still) player = setInterval(() => {
        if (++step > src.length) clearInterval(player);
        if (runs[shown].now) draw_view();
      }, 500);
    }

    const smooth = (points) => points.map(([at], i) => {
      const recent = points.slice(Math.max(0, i - 9), i + 1);
      return [at, recent.reduce((sum, [, loss]) => sum + loss, 0) / recent.length];
    });
    const right_of = ({ now }) => `${Math.round(now.share * now.total)} of ${now.total}`;

    function draw() {
      draw_curves();
      draw_samples();
      draw_view();
      [...which.querySelectorAll("button")].forEach((each, i) => each.setAttribute("aria-pressed", String(i === shown)));
      back.max = kept.length - 1;
      back.value = kept.indexOf(runs[0].now.step);
      back.setAttribute("aria-valuetext", `update ${runs[0].now.step}`);
      back_to.replaceChildren(`update ${runs[0].now.step}`);
    }

    function draw_curves() {
      const [run] = runs;
      const now = run.now.step;
      const across = { from: 0, to: Math.max(100, run.losses.length), label: "update" };
      const lines = runs.map(({ losses }) => smooth(losses));
      const loss = lines.map((line) => line[now - 1]?.[1]);
      losses.axes(across, { from: 0, to: 4, label: "loss, nats" }, now ? `After update ${now} the loss is ${loss[0].toFixed(2)}.` : "Nothing is trained yet.");
      shares.axes(across, { from: 0, to: 1.02, label: "all right", show: share }, `${right_of(run)} are right.`);
      for (const i of [1, 0].filter((i) => runs[i])) {
        losses.curve(lines[i], i ? "live-other" : "live-main");
        shares.curve(runs[i].shares, i ? "live-other" : "live-main");
        if (now) losses.dot([now, loss[i]], "live-now");
        shares.dot([now, runs[i].now.share], "live-now");
      }
      const time = seconds && now === run.losses.length ? ` in ${seconds.toFixed(1)} s` : "";
      const told = now ? `After update ${now}${time} the loss is ${loss[0].toFixed(2)}; ${right_of(run)} unseen sequences are right.` : `Nothing is trained yet; ${right_of(run)} unseen sequences are right.`;
      const beside = runs[1] ? [` Dashed, ${runs[1].name}: ${now ? `loss ${loss[1].toFixed(2)}, ` : ""}${right_of(runs[1])} right.`] : [];
      said.replaceChildren(worker ? "" : "A recording. ", told, ...beside, ...lesson());
    }

    const link = (page, words) => html("a", { href: `${page}.html` }, words);

    // What a run that has ended teaches, and where to go from there.
    function lesson() {
      const [{ now, losses }, other] = runs;
      if (running || learning || now.step < losses.length || now.step < 10 || (now.share < 0.95 && now.step < 3000)) return [];
      if (now.share < 0.95) return [html("strong", {}, " It has not learned it.")," Try another rate."];
      if (!other) {
        const next = worker ? "Now type digits of your own, or take a part away." : "Press Train, and it learns here; or type digits, or take a part away.";
        return [html("strong", {}, ` It has learned the task, from examples alone. ${next}`), " How it is built is derived from ", link("02-embedding", "Chapter 2"), " on."];
      }
      const [words, broken, whole, page, chapter] = PARTS[other.part];
      const left = other.now.share / now.share;
      const after = `after ${now.step} updates`; // the table on the page is made later
      const sentence = left < 0.5 ? `Without ${words} ${share(other.now.share)} are right instead of ${share(now.share)} ${after}: ${broken}.`
        : left < 0.95 ? `Without ${words} it learns more slowly: ${after} ${share(other.now.share)} are right, not ${share(now.share)}. Press Train to see how far it gets.`
        : `Without ${words} nothing is lost ${after}, ${share(other.now.share)} beside ${share(now.share)}: ${whole}.`;
      return [" ", html("strong", {}, sentence), " More in ", link(page, chapter), "."];
    }

    // One run's answer to a sequence, with a line in the style of its curve.
    function answer_of({ answers, right, unseen }, number, style) {
      const made = answers[number].map((id, i) => token_cell(id, id === unseen[number][1][i] ? "" : "live-unlike"));
      const key = style ? [html("span", { class: `live-key live-key-${style}` }, html("span", { class: "live-spoken" }, `${style}: `))] : [];
      return html("span", { class: "live-answer" }, ...key, html("span", {}, "→"),
        html("span", { class: "live-tokens" }, ...(made.length ? made : [html("span", { class: "live-label" }, "nothing")])),
        html("span", { class: `live-verdict ${right[number] ? "live-correct" : ""}` }, right[number] ? "✓" : "✗", html("span", { class: "live-spoken" }, right[number] ? " right" : " wrong")));
    }

    // A row stays the same element from report to report, or else a slow click would begin on one and end on another.
    function draw_samples() {
      const { unseen } = runs[0].now;
      const { src } = view();
      while (samples.childElementCount > unseen.length) samples.lastChild.remove();
      unseen.forEach(([digits], number) => {
        const row = samples.children[number] ?? samples.appendChild(html("button", { type: "button", class: "live-sample", click: () => answer_to(runs[0].now.unseen[number][0]) }));
        row.replaceChildren(html("span", { class: "live-tokens" }, ...digits.map((id) => token_cell(id))),
          html("span", { class: "live-answers" }, ...runs.map(({ now }, i) => answer_of(now, number, runs.length > 1 && ["solid", "dashed"][i]))));
        row.setAttribute("aria-pressed", String(digits.join() === src.join()));
      });
    }

    // The drawn model, with what it makes of the digits in the field; it stays the same element while its sizes do.
    function draw_view() {
      const { src, written, next, maps } = view();
      const { settings } = runs[shown];
      const sizes = JSON.stringify([settings, src.length]);
      if (sizes !== drawn_for) {
        [drawn_for, model] = [sizes, machine(settings, src.length)];
        drawn.replaceChildren(model.element);
      }
      if (document.activeElement !== field.input) {
        field.input.value = src.join("");
        complain("");
      }
      const now = Math.min(step, written.length - 1);
      model.show(view(), now);
      const wanted = [...live.learning().TASKS[settings.task](src), END];
      const right = written.join() === wanted.join();
      while (answer.childElementCount > written.length) answer.lastChild.remove();
      written.forEach((id, t) => {
        const cell = answer.children[t] ?? answer.appendChild(html("button", { type: "button", click: () => { clearInterval(player); step = t; draw_view(); } }));
        cell.className = `live-token ${t > now ? "live-later" : id === wanted[t] ? "" : "live-unlike"}`;
        cell.setAttribute("aria-label", `Step ${t + 1}: ${name(id)}`);
        cell.setAttribute("aria-pressed", String(t === now));
        cell.replaceChildren(t > now && player && step < src.length ? " " : sign(id));
      });
      const ends = now === written.length - 1;
      verdict.replaceChildren(...ends ? [right ? "✓" : "✗", html("span", { class: "live-spoken" }, right ? " right" : " wrong")] : []);
      const shown_ids = range(0, END).filter((id) => id !== 11);
      bars.replaceChildren(...shown_ids.map((id) => html("span", { class: id === written[now] ? "live-likeliest" : "", style: `--p: ${next[now][id].toFixed(3)}` }, html("span", { class: "live-probability" }), sign(id))));
      const likely = (numbers, count, words) => numbers.map((p, i) => [p, i]).sort(([a], [b]) => b - a).slice(0, count).map(([p, i]) => `${words(i)} ${percent(p)}`).join(", ");
      bars.setAttribute("aria-label", `Next token: ${likely(next[now], 3, name)}`);
      const cross = maps.filter((each) => each.name.includes("cross")).at(-1);
      const looks = range(settings.without === "head" ? 1 : 0, (cross?.n_heads ?? 0) - 1).map((head) => {
        const row = cross.weights.slice((head * cross.T + now) * cross.S, (head * cross.T + now + 1) * cross.S);
        return `head ${head + 1} puts ${share(Math.max(...row))} on token ${most(row) + 1} (${sign(src[most(row)])})`;
      });
      looked.replaceChildren(`Step ${now + 1} writes ${name(written[now])} (${percent(next[now][written[now]] ?? 0)}). ${looks.length ? `Its cross-attention: ${looks.join(", ")}.` : "Nothing of the input reaches it."}`,
        ...ends && !right ? [` Right is ${wanted.slice(0, -1).map(sign).join("")}.`] : [],
        ...src.length === settings.digits ? [] : [` It is trained on ${settings.digits} digits, not on ${src.length}.`]);
    }

    const { task, digits, d_model, heads, layers, norm, peak, warmup, dropout, smoothing, seed } = controls;
    const stack = (...parts) => html("div", { class: "live-sliders live-stack" }, ...parts.map(({ row }) => row));
    const folded = [d_model, heads, layers, norm, seed, peak, warmup, dropout, smoothing];
    const open = folded.some((each) => differs(given).some(([key]) => controls[key] === each));
    const panel = html("div", { class: "live-panel live-learner" }, refused,
      html("div", { class: "live-row live-runs" }, go, one, again, task.row, digits.row),
      html("div", { class: "live-row live-away", role: "group", "aria-label": "Take away" }, html("span", {}, "Take away"), ...taken.map((each) => each.button)), said,
      html("div", { class: "live-asked" }, html("label", {}, "Your digits ", field.input), field.note, html("div", { class: "live-row" }, answer, verdict), bars, looked),
      samples, html("div", { class: "live-whole-model" }, which, drawn, html("label", { class: "live-slider live-back" }, html("span", {}, "Back"), back, back_to)),
      html("div", { class: "live-curves" }, losses.svg, shares.svg),
      html("details", { open }, html("summary", {}, "Settings"), html("div", { class: "live-halves" }, stack(d_model, heads, layers, norm, seed), stack(peak, warmup, dropout, smoothing))));
    if (differs(given).length) begin(true, given.updates);
    else play_film();
    return panel;
  }

  live.start_worker = start_worker; // for the single runs of chapters
  live.learner = { work, first: settings_of(FIRST) }; // for what records the first seconds
  live.mount("learner", build);
}
