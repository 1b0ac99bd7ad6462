// The toy model of Chapter 9: it answers as one types, shows what each head attends to, and can be taken apart.
"use strict";
{
  const { html, svg, percent } = live;
  const X = 10;
  const LONGEST = 10; // digits
  const KINDS = {
    encoder: { name: "the encoder", asks: "Input token", stack: "encoder", module: "self_attention" },
    decoder: { name: "the decoder", asks: "Output token", stack: "decoder", module: "self_attention" },
    cross: { name: "the cross-attention", asks: "Output token", stack: "decoder", module: "cross_attention" },
  };

  // The rule: the 2nd, 4th, … occurrence of a digit becomes an X; then reverse.
  function reverse_and_mark(digits) {
    const seen = {};
    return digits.map((digit) => ((seen[digit] = (seen[digit] ?? 0) + 1) % 2 ? digit : X)).reverse();
  }

  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

  // Numbers in [0, 1), the same for the same seed.
  function random_numbers(seed) {
    return () => (seed = (seed * 48271) % 2147483647) / 2147483647;
  }

  const random_digits = (random) => Array.from({ length: 10 }, () => Math.floor(10 * random()));

  // The layer and head that put most weight, in all samples, where `wanted(t, s)`; a sample is {maps, wanted}.
  function head_at(samples) {
    const on = (weights, wanted) => sum(weights.map((row, t) => sum(row.filter((_, s) => wanted(t, s)))));
    const heads = samples[0].maps.flatMap((attention, layer) => attention.map((_, head) =>
      ({ layer, head, weight: sum(samples.map(({ maps, wanted }) => on(maps[layer][head], wanted))) })));
    const { layer, head } = heads.reduce((best, one) => (one.weight > best.weight ? one : best));
    return { layer, head };
  }

  function build(model, record) {
    const { n_heads, n_layers, bos_id, eos_id } = model.config;
    const name = (id) => (id < X ? String(id) : { [X]: "X", [bos_id]: "start", [eos_id]: "end" }[id] ?? "pad");
    const view = { kind: "cross", layer: 0, head: 0, row: 9 };
    let digits, found, maps;

    const attention = (kind, layer) => model[KINDS[kind].stack].layers[layer][KINDS[kind].module];
    const attentions = () =>
      Object.keys(KINDS).flatMap((kind) => [...Array(n_layers).keys()].map((layer) => attention(kind, layer)));
    const here = () => attention(view.kind, view.layer);
    const title = () => `head ${view.layer + 1}.${view.head + 1} of ${KINDS[view.kind].name}`;
    const read = () => [bos_id, ...found.tokens.slice(0, -1)];
    const keys = () => (view.kind === "decoder" ? read() : digits);
    const queries = () => (view.kind === "encoder" ? digits : found.tokens);

    // Controls ---------------------------------------------------------------------------------------

    const input = html("input", {
      class: "live-digits", inputmode: "numeric", autocomplete: "off", spellcheck: "false", beforeinput: type_over, input: () => answer(),
    });
    const { note, complain } = live.note_for(input);
    const slider = html("input", { type: "range", min: 1, max: 10, step: 1, input: () => look({ row: slider.value - 1 }) });
    const asks = html("span");
    const place = html("output", { class: "live-place" });
    const tokens = html("span", { class: "live-tokens" });
    const verdict = html("output", { class: "live-verdict" });
    const drawing = svg("svg", { class: "live-drawing", viewBox: "0 10 500 180", role: "img" });
    const said = html("p", { class: "live-said" });
    const score = html("output", { class: "live-score" });
    const kinds = Object.keys(KINDS).map((kind) =>
      html("label", {}, html("input", { type: "radio", name: "live-kind", value: kind, change: () => look({ kind }) }), kind));
    const heads = Array.from({ length: n_layers * n_heads }, (_, i) => {
      const [layer, head] = [Math.floor(i / n_heads), i % n_heads];
      const radio = html("input", {
        type: "radio", name: "live-head", "aria-label": `layer ${layer + 1}, head ${head + 1}`,
        change: () => look({ layer, head }),
      });
      return html("label", { class: "live-head" }, radio, svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }));
    });

    const switches = {
      head: (off) => here().silent[off ? "add" : "delete"](view.head),
      positions: (off) => (model.positions = off ? (x) => x : live.add_positions),
      mask: (off) => (model.causal = !off),
      scale: (off) => attentions().forEach((each) => (each.scale = off ? 1 : 1 / Math.sqrt(each.d_k))),
    };
    const labels = {
      head: html("span"), positions: "the positions", mask: "the decoder's causal mask", scale: "the scale 1/√dₖ",
    };
    const boxes = {};
    for (const part in switches) {
      const change = () => { switches[part](boxes[part].checked); answer(); };
      boxes[part] = html("input", { type: "checkbox", change });
    }
    const button = (text, click) => html("button", { type: "button", class: "live-button", click }, text);

    // With ten digits in the field, a new one takes the place of the next.
    function type_over(event) {
      const { value, selectionStart, selectionEnd } = input;
      if (/^\d$/.test(event.data) && value.length === LONGEST && selectionStart === selectionEnd) {
        event.preventDefault();
        const at = selectionStart % LONGEST;
        input.setRangeText(event.data, at, at + 1, "end");
        answer();
      }
    }

    function put_back() {
      attentions().forEach((each) => each.silent.clear());
      for (const part of ["positions", "mask", "scale"]) {
        boxes[part].checked = false;
        switches[part](false);
      }
    }

    function take_counting_head() {
      put_back();
      input.value = "7172738495";
      const { layer, head } = counting_head();
      attention("encoder", layer).silent.add(head);
      Object.assign(view, { kind: "encoder", layer, head, row: 4 });
      answer();
    }

    // The encoder's head that looks most at earlier equals.
    function counting_head() {
      const random = random_numbers(1);
      return head_at(Array.from({ length: 20 }, () => {
        const sequence = random_digits(random);
        model.encode(sequence);
        const maps = model.encoder.layers.map(({ self_attention }) => self_attention.weights);
        return { maps, wanted: (t, s) => s < t && sequence[s] === sequence[t] };
      }));
    }

    function mistake_in(text) {
      if (/\D/.test(text)) return `Only the digits 0 to 9 can be read, not “${text.match(/\D/)[0]}”.`;
      return text.length >= 1 && text.length <= LONGEST ? "" : `Between 1 and ${LONGEST} digits are read, not ${text.length}.`;
    }

    // Without digits nothing is left of the answer before.
    function clear() {
      for (const part of [tokens, verdict, drawing, said, place, ...heads.map((label) => label.lastChild)]) part.replaceChildren();
      drawing.setAttribute("aria-label", "There is no answer.");
    }

    // What the model says ----------------------------------------------------------------------------

    function answer() {
      measurement++;
      score.replaceChildren();
      const wrong = mistake_in(input.value);
      complain(wrong);
      if (wrong) return clear();
      digits = [...input.value].map(Number);
      found = live.greedy_search(model, digits, digits.length);
      maps = model.attention_maps(digits, read());
      look({});
    }

    let measurement = 0; // counts up, and so ends the one before
    async function measure() {
      const [mine, random, total] = [++measurement, random_numbers(1), 100];
      const right = { tokens: 0, sequences: 0 };
      for (let done = 1; done <= total; done++) {
        const sequence = random_digits(random);
        const { tokens } = live.greedy_search(model, sequence, 10);
        const equal = reverse_and_mark(sequence).filter((digit, i) => digit === tokens[i]).length;
        right.tokens += equal;
        right.sequences += equal === 10;
        if (done % 5 === 0) await new Promise((resume) => setTimeout(resume));
        if (mine !== measurement) return;
        score.replaceChildren(done < total ? `${done} of ${total} …`
          : `Right: ${right.sequences} of ${total} sequences, ${percent(right.tokens / total / 10)} of the tokens.`);
      }
    }

    // What is seen -----------------------------------------------------------------------------------

    function look(change) {
      Object.assign(view, change);
      if (mistake_in(input.value)) return;
      view.row = Math.min(view.row, queries().length - 1);
      show_answer();
      show_heads();
      show_drawing();
    }

    function show_answer() {
      const truth = reverse_and_mark(digits);
      const written = view.kind === "encoder" ? truth.length : view.row + 1;
      const right = truth.filter((digit, i) => digit === found.tokens[i]).length;
      tokens.replaceChildren(...found.tokens.map((id, i) => {
        const state = i >= written ? "live-later" : id === truth[i] ? "" : "live-wrong";
        const instead = id === truth[i] ? undefined : `the rule says ${name(truth[i])}`;
        return html("span", { class: `live-token ${state}`, title: instead }, name(id));
      }));
      const unusual = digits.length === 10 ? "" : " The model has only ever seen ten digits.";
      verdict.replaceChildren(`${right === truth.length ? "✓" : "✗"} ${right} of ${truth.length} right.${unusual}`);
      verdict.classList.toggle("live-bad", right < truth.length);
    }

    function show_heads() {
      kinds.forEach((label) => (label.firstChild.checked = label.firstChild.value === view.kind));
      heads.forEach((label, i) => {
        const [layer, head] = [Math.floor(i / n_heads), i % n_heads];
        const weights = maps[view.kind][layer][head];
        const size = Math.max(weights.length, weights[0].length);
        const cells = weights.flatMap((row, t) => row.map((weight, s) =>
          weight > 0.04 && svg("rect", { x: s, y: t, width: 1, height: 1, opacity: weight.toFixed(2) })));
        label.firstChild.checked = layer === view.layer && head === view.head;
        label.classList.toggle("live-off", attention(view.kind, layer).silent.has(head));
        label.lastChild.setAttribute("viewBox", `0 0 ${size} ${size}`);
        label.lastChild.replaceChildren(...cells.filter(Boolean));
      });
      boxes.head.checked = here().silent.has(view.head);
      labels.head.replaceChildren(title());
    }

    function show_drawing() {
      const [above, below, weights] = [keys(), queries(), maps[view.kind][view.layer][view.head]];
      const x = (i, list) => 250 + 49 * (i - (list.length - 1) / 2);
      const lines = weights.flatMap((row, t) => row.map((weight, s) => {
        const now = t === view.row;
        const hidden = weight < 0.02 || (view.kind !== "encoder" && t > view.row);
        const path = `M${x(t, below)} 152C${x(t, below)} 102 ${x(s, above)} 98 ${x(s, above)} 48`;
        const style = { class: now ? "live-now" : "live-other", "stroke-opacity": weight.toFixed(2) };
        return !hidden && svg("path", { d: path, "stroke-width": (now ? 1.5 + 4 * weight : 1.5), ...style });
      }));
      const box = (list, y, state, click) => (id, i) => svg("g", { class: `live-box ${state(i)}`, click: () => click(i) },
        svg("rect", { x: x(i, list) - 21, y, width: 42, height: 36, rx: 5 }),
        svg("text", { x: x(i, list), y: y + 25, class: name(id).length > 1 ? "live-word-token" : "" }, name(id)));
      const row = weights[view.row];
      const tops = above.map(box(above, 12, () => "", () => {}));
      tops.forEach((top, s) => top.firstChild.style.setProperty("--weight", row[s] ?? 0));
      const later = (i) => (view.kind !== "encoder" && i > view.row ? "live-later" : "");
      const bottoms = below.map(box(below, 152, (i) => (i === view.row ? "live-asking" : later(i)), (row) => look({ row })));
      drawing.replaceChildren(...lines.filter(Boolean), ...tops, ...bottoms);

      const best = row.indexOf(Math.max(...row));
      const asking = below[view.row];
      const before = read().slice(0, view.row + 1).map(name).join(" ");
      const writes = `Having read ${before}, the decoder writes ${name(asking)} (${percent(found.probabilities[view.row][asking])}). `;
      const gives = `gives ${percent(row[best])} of its weight to ${name(above[best])}, token ${best + 1}.`;
      const asker = view.kind === "encoder" ? `For input token ${view.row + 1}, ${name(asking)}, ${title()} ` : `${writes}H${title().slice(1)} `;
      said.replaceChildren(asker, gives);
      drawing.setAttribute("aria-label", said.textContent);
      slider.max = below.length;
      slider.value = view.row + 1;
      slider.setAttribute("aria-valuetext", said.textContent);
      asks.replaceChildren(KINDS[view.kind].asks);
      place.replaceChildren(`${view.row + 1} of ${below.length}`);
    }

    const panel = html("div", { class: "live-panel live-toy" },
      html("div", { class: "live-row" }, html("label", {}, "Digits ", input),
        button("Shuffle", () => { input.value = random_digits(Math.random).join(""); answer(); }), note,
        html("span", { class: "live-row live-answered" }, html("span", { class: "live-label" }, "Answer "), tokens, verdict)),
      html("div", { class: "live-columns" },
        html("div", {}, drawing, html("label", { class: "live-slider" }, asks, slider, place)),
        html("div", {},
          html("fieldset", {}, html("legend", {}, "Attention"), html("div", { class: "live-kinds" }, ...kinds),
            html("div", { class: "live-heads", role: "radiogroup", "aria-label": "layer and head" }, ...heads)), said)),
      html("details", {}, html("summary", {}, "Take parts of the model away, and count what it then gets right"),
        html("fieldset", { class: "live-parted" }, html("legend", { class: "live-spoken" }, "Take away"),
          ...Object.keys(switches).map((part) => html("label", { class: "live-switch" }, boxes[part], labels[part]))),
        html("div", { class: "live-row" }, button("Take away the counting head", take_counting_head),
          button("Put everything back", () => { put_back(); answer(); }), button("Try 100 random sequences", measure), score)));
    input.value = record.check.src.join("");
    answer();
    look(head_at([{ maps: maps.cross, wanted: (t, s) => t + s === digits.length - 1 }])); // where reversal looks
    return panel;
  }

  live.mount("toy", build);
}
