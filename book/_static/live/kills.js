// A run to be killed, for Chapter 11: what a checkpoint brings back, and whether anything is missing afterward.
"use strict";
{
  const { html, slider } = live;
  const WORDS = 12, BATCH = 96, STEPS = 80, LONGEST = 400; // updates of a run, and of all its attempts

  // A table of logits says which word follows which. Everything that the next update depends on is in here.
  function begin(seed = 1) {
    const zeros = () => new Float64Array(WORDS * WORDS);
    return { weights: zeros(), m: zeros(), v: zeros(), t: 0, step: 0, random: seed };
  }

  // Pairs of a word and the next one, drawn with the run's own random numbers.
  function batch(run) {
    const random = () => {
      run.random = (run.random + 0x6d2b79f5) | 0;
      let t = Math.imul(run.random ^ (run.random >>> 15), 1 | run.random);
      t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
      return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
    };
    const word = () => Math.floor(WORDS * random());
    return Array.from({ length: BATCH }, word).map((first) => [first, random() < 0.9 ? (5 * first + 3) % WORDS : word()]);
  }

  const rate = (step) => 0.05 * Math.min(1, step / 80);

  // One update by Adam; returns the loss.
  function update(run, pairs = batch(run)) {
    const { weights, m, v } = run;
    const gradient = new Float64Array(weights.length);
    let loss = 0;
    for (const [first, next] of pairs) {
      const powers = [...weights.subarray(first * WORDS, (first + 1) * WORDS)].map(Math.exp);
      const sum = powers.reduce((a, b) => a + b);
      powers.forEach((power, i) => { gradient[first * WORDS + i] += (power / sum - (i === next)) / BATCH; });
      loss -= Math.log(powers[next] / sum) / BATCH;
    }
    run.t++;
    const [c_1, c_2] = [1 - 0.9 ** run.t, 1 - 0.98 ** run.t];
    const size = rate(++run.step);
    gradient.forEach((g, i) => {
      m[i] += 0.1 * (g - m[i]);
      v[i] += 0.02 * (g * g - v[i]);
      weights[i] -= (size * m[i]) / c_1 / (Math.sqrt(v[i] / c_2) + 1e-9);
    });
    return loss;
  }

  // A run as its checkpoint has it, but for what is forgotten. Without a checkpoint it begins again.
  function resume(checkpoint, forget = "") {
    const { m, v, t, random } = begin();
    const without = { "Adam's averages": { m, v, t }, "the position in the data": { random } };
    return { ...(checkpoint ? structuredClone(checkpoint) : begin()), ...without[forget] };
  }

  // The largest difference of a number of two runs, 0 only if all are equal, bit for bit.
  const difference = (a, b) => Math.max(...["weights", "m", "v"].flatMap((name) => Array.from(a[name], (x, i) => (Object.is(x, b[name][i]) ? 0 : Math.abs(x - b[name][i]) || Infinity))));

  function build() {
    const whole = [{ run: begin() }]; // the run that nobody kills, after each of its updates
    while (whole.length <= STEPS) {
      const run = structuredClone(whole.at(-1).run);
      whole.push({ loss: update(run), run });
    }
    let run, saved, furthest, kills, lost, again, made, losses, path, timer;
    const every = slider("Checkpoint", [0, 40, 20, 10, 5, 2, 1], 10, (k) => (!k ? "never" : k === 1 ? "every update" : `every ${k} updates`), () => {});
    const forget = html("select", { "aria-label": "Forget" }, ...[["", "nothing"], ["Adam's averages"], ["the position in the data"]].map(([value, words = value]) => html("option", { value }, words)));
    const button = (words, click, more = "") => html("button", { type: "button", class: `live-button ${more}`, click }, words);
    const go = button("Run", () => (timer || over() ? pause() : start()), "live-go");
    const kill = button("Kill", () => over() || strike());
    const [work, curve] = [new live.Plot("", 480, 206), new live.Plot("", 480, 206)];
    const said = html("output", { class: "live-said" });

    function reset() {
      [run, saved, furthest, kills, lost, again, made] = [begin(), null, 0, 0, 0, 0, 0];
      [losses, path] = [[], [[0, 0]]];
    }

    function advance() {
      const loss = update(run);
      made++;
      again += run.step <= furthest;
      furthest = Math.max(furthest, run.step);
      losses.push(loss);
      path.push([made, run.step]);
      if (every.value && run.step % every.value === 0) saved = structuredClone(run);
    }

    // Signal 9: whatever is not in the checkpoint is gone.
    function strike() {
      kills++;
      lost += run.step - (saved?.step ?? 0);
      run = resume(saved, forget.value);
      losses.length = run.step;
      path.push([made, run.step]);
      show();
    }

    const over = () => run.step >= STEPS || made >= LONGEST;

    function start() {
      const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
      timer = setInterval(() => {
        for (let i = 0; i < (still ? 10 : 1) && !over(); i++) advance();
        if (over()) pause();
        show();
      }, still ? 1000 : 100);
      show();
    }

    function pause() {
      clearInterval(timer);
      timer = undefined;
      show();
    }

    // The last ten losses beside those of the run without a kill.
    function gap() {
      const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
      const ten = losses.slice(-10);
      const mean = sum(ten.map((loss, i) => loss - whole[run.step - ten.length + i + 1].loss)) / ten.length;
      return ten.length ? `The last ${ten.length} losses are ${Math.abs(mean).toFixed(2)} ${mean < 0 ? "lower" : "higher"}.` : "";
    }

    function words() {
      const updates = (n) => (n === 1 ? "1 update" : `${n} updates`);
      const off = difference(run, whole[run.step].run);
      const counted = kills ? `Killed ${kills === 1 ? "once" : `${kills} times`}: ${updates(lost)} lost, ${again} made again. ` : "";
      if (!made) return "Run it, and kill it whenever you like.";
      const equal = !run.step ? "It begins again, with nothing." : off ? `The largest difference of a weight or an average is ${off.toFixed(3)}. ${gap()}` : "✓ Equal to the run without a kill, bit for bit.";
      const end = run.step < STEPS && over() ? ` The figure stops after ${LONGEST} updates of work.` : "";
      return `Update ${run.step} of ${STEPS} after ${updates(made)} of work. ${counted}${equal}${end}`;
    }

    function show() {
      go.replaceChildren(timer ? "Pause" : "Run");
      for (const each of [go, kill]) each.setAttribute("aria-disabled", over());
      const sentence = words();
      work.axes({ from: 0, to: Math.max(120, 40 * Math.ceil(made / 40)), label: "updates of work" }, { from: 0, to: STEPS, label: "update" }, `The place of the run over time. ${sentence}`);
      work.curve([[0, 0], [STEPS, STEPS]], "live-other");
      work.curve(path, "live-main");
      work.dot([made, run.step], "live-main");
      curve.axes({ from: 0, to: STEPS, label: "update" }, { from: 0, to: 2.7, label: "loss" }, `The loss of the run, beside that of the run without a kill. ${sentence}`);
      curve.curve(losses.map((loss, i) => [i + 1, loss]), "live-main");
      curve.curve(whole.slice(1).map(({ loss }, i) => [i + 1, loss]), "live-other");
      said.replaceChildren(sentence);
    }

    function again_from_start() {
      pause();
      reset();
      show();
    }

    // As in the chapter: a checkpoint every ten updates, and a kill in update 28.
    reset();
    while (made < 27) advance();
    strike();
    while (run.step < 45) advance();
    show();
    return html("div", { class: "live-panel live-kills" },
      html("div", { class: "live-row" }, go, kill, button("Start over", again_from_start), every.row,
        html("label", { class: "live-forget" }, html("span", {}, "Forget "), forget)),
      html("div", { class: "live-halves" }, work.svg, curve.svg), said);
  }

  live.kills = { begin, batch, update, rate, resume, difference };
  live.mount("kills", build);
}
