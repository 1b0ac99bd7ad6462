// A training step on many devices, for Chapter 19: what a way to divide it takes, by the planner's arithmetic.
"use strict";
{
  const { html, svg, slider, range } = live;
  const GB = 1e9;
  const [WHOLE, DIVIDED, NETWORK, HIDDEN, SIZE] = [5, 8, 5, 4, 2]; // bytes, of programs with 16-bit weights
  const AT_ONCE = 2 ** 21;
  const sum = (parts) => Object.values(parts).reduce((a, b) => a + b, 0);
  const once = (size, group) => (size * (group - 1)) / group; // around a ring

  // The functions of transformer.speed.costs, for language models and the program "mixed".
  function matrices({ layers, d_model, d_ff, n_heads, n_kv_heads, gated }) {
    const share = (n_kv_heads || n_heads) / n_heads;
    return layers * (2 * (1 + share) * d_model ** 2 + (2 + gated) * d_model * d_ff);
  }

  function parameters(shape) {
    const { layers, d_model: d, d_ff, vocab_size, n_heads, n_kv_heads, tables, bias } = shape;
    const biases = layers * (3 + (2 * (n_kv_heads || n_heads)) / n_heads) * d + layers * (d_ff + 2 * d);
    return Math.round(matrices(shape) + 2 * layers * d + bias * biases + tables * vocab_size * d);
  }

  function flops(shape, { batch, length }, recompute) {
    const layers = 2 * matrices(shape) + 4 * length * shape.layers * shape.d_model;
    return batch * length * ((3 + recompute) * layers + 6 * shape.vocab_size * shape.d_model);
  }

  function kept(shape, { length, fused }, { tensor, micro, sequence }) {
    const { layers, d_model, d_ff, n_heads, n_kv_heads, gated } = shape;
    const undivided = sequence ? tensor : 1;
    let attention = d_model * (WHOLE / undivided + (DIVIDED * (1 + (n_kv_heads || n_heads) / n_heads)) / 2 / tensor);
    attention += fused ? 0 : (5 * length * n_heads) / tensor;
    const network = (d_model * NETWORK) / undivided + (HIDDEN * (1 + gated) * d_ff) / tensor;
    return micro * length * layers * (attention + network);
  }

  function stage(shape, { tensor, pipeline, chunks }) {
    const share = (chunks * Math.ceil(shape.layers / (pipeline * chunks))) / shape.layers;
    const tables = shape.tables * shape.vocab_size * shape.d_model;
    return [share, (share * (parameters(shape) - tables) + tables) / tensor];
  }

  function memory(shape, work, split) {
    const { data, tensor: t, pipeline: p, shard: k, micro, chunks: v, recompute } = split;
    const [n, m] = [micro * work.length, Math.floor(work.batch / (data * micro))];
    const [[share, own], all] = [stage(shape, split), kept(shape, work, split)];
    const waiting = share * Math.min(p, m) * (1 + ((p - 1) / (p * v)) * (v > 1));
    let activations = recompute ? waiting * 2 * n * shape.d_model * shape.layers + all / shape.layers : waiting * all;
    const [logits, table] = [(n * shape.vocab_size) / t, (4 * shape.vocab_size * shape.d_model) / t];
    const divided = p === 1 ? k : 1;
    activations += 12 * Math.min(logits, AT_ONCE) + table * (logits > AT_ONCE);
    activations += divided > 1 ? (2 * SIZE * own) / (share * 2 * shape.layers) : 0;
    return { parameters: (2 * own) / divided, averages: (12 * own) / k, gradients: (2 * own) / divided, activations };
  }

  function time(shape, work, split, cluster) {
    const { data: d, tensor: t, pipeline: p, shard: k, micro, chunks, recompute } = split;
    const rate = (group, stride) => (group * stride <= cluster.per_node ? cluster.link : cluster.network);
    const vectors = SIZE * micro * work.length * shape.d_model;
    const m = Math.floor(work.batch / (d * micro));
    const [share, own] = stage(shape, split);
    const arithmetic = (share * p * flops(shape, work, recompute)) / cluster.devices / (cluster.flops * cluster.efficiency);
    const bandwidth = (m * share * (recompute ? 7 : 5) * kept(shape, work, split) + (32 * own) / k) / cluster.bandwidth;
    const busy = Math.max(arithmetic + bandwidth, m * share * 48 * shape.layers * cluster.launch);
    const tensor = (m * share * 2 * shape.layers * (2 + recompute) * 2 * once(vectors, t)) / rate(t, 1);
    const stages = (m * chunks * 2 * vectors * (p > 1)) / t / rate(p, t * d);
    let traffic = (2 * once((SIZE * own) / k, d / k)) / rate(d / k, t * k);
    traffic += ((p === 1 ? 3 * m : 2) * once(SIZE * own, k)) / rate(k, t);
    const bubble = ((p - 1) / (m * chunks)) * (busy + tensor);
    return { arithmetic, bandwidth, launches: busy - arithmetic - bandwidth, tensor, stages, data: Math.max(0, traffic - busy), bubble };
  }

  function predict(shape, work, split, cluster) {
    const [held, spent] = [memory(shape, work, split), time(shape, work, split, cluster)];
    const [bytes, seconds] = [sum(held), sum(spent)];
    const longest = Object.keys(spent).reduce((a, b) => (spent[b] > spent[a] ? b : a));
    const all = seconds * cluster.devices;
    return { memory: held, time: spent, bytes, seconds, utilization: flops(shape, work, false) / (all * cluster.flops), rate: flops(shape, work, split.recompute) / all, limit: bytes > cluster.memory ? "memory" : longest };
  }

  // What keeps a split from being one, as `check_split` says it.
  function refusal(shape, work, split) {
    const wrong = [
      [`shard must divide data, which is ${split.data}`, split.data % split.shard],
      [`data must divide the ${work.batch.toLocaleString("en")} sequences of a step`, work.batch % split.data],
      [`tensor must divide the ${shape.n_heads} heads`, shape.n_heads % split.tensor],
      [`pipeline must be at most ${shape.layers}, the layers`, split.pipeline > shape.layers],
    ];
    return wrong.find(([, holds]) => holds)?.[0];
  }

  // The models of Narayanan et al. (2021), table 1, by name; then Llama 3's largest.
  const gpt = (layers, d_model, n_heads) => ({ layers, d_model, d_ff: 4 * d_model, n_heads, n_kv_heads: 0, vocab_size: 51200, tables: 1, gated: false, bias: true });
  const MODELS = {
    "1.7 billion": gpt(24, 2304, 24), "3.6 billion": gpt(30, 3072, 32), "7.5 billion": gpt(36, 4096, 32), "18 billion": gpt(40, 6144, 48), "39 billion": gpt(48, 8192, 64), "76 billion": gpt(60, 10240, 80),
    "146 billion": gpt(80, 12288, 96), "310 billion": gpt(96, 16384, 128), "406 billion, Llama 3": { layers: 126, d_model: 16384, d_ff: 53248, n_heads: 128, n_kv_heads: 8, vocab_size: 128256, tables: 2, gated: true, bias: false }, "530 billion": gpt(105, 20480, 128), "1 trillion": gpt(128, 25600, 160),
  };
  const A100 = { memory: 80 * GB, flops: 312e12, bandwidth: 2.04e12, per_node: 8, efficiency: 0.6, launch: 1e-5 };
  const LENGTH = 2048;
  const WORDS = { arithmetic: "arithmetic", bandwidth: "the devices' own memory", launches: "starting operations", tensor: "sums within layers", stages: "sending between stages", data: "weights and gradients on their way", bubble: "stages that wait for one another" };
  const powers = (most) => range(0, most).map((power) => 2 ** power);
  const many = (number) => number.toLocaleString("en", { maximumFractionDigits: number < 10 ? 1 : 0 });

  function build() {
    const names = Object.keys(MODELS);
    const choose = (label, values, first, show = many) => slider(label, values, first, show, update);
    const model = choose("Parameters", names, "18 billion", String);
    const batch = choose("Tokens a step", powers(13), 1024, (sequences) => `${many((sequences * LENGTH) / 1e6)} million`);
    const [data, tensor, pipeline, shard] = [choose("Data", powers(9), 32), choose("Tensor", powers(3), 8), choose("Pipeline", powers(6), 1), choose("Shard", powers(9), 1)];
    const gigabytes = (value) => `${value} GB/s`;
    const link = choose("Within a machine", [25, 50, 100, 200, 300, 450, 600, 900], 300, gigabytes);
    const network = choose("Between machines", [1, 3, 6, 12, 25, 50, 100, 200], 25, gigabytes);
    const recompute = html("input", { type: "checkbox", checked: true, change: update });
    const picture = svg("svg", { class: "live-plot live-devices", viewBox: "0 0 480 250", role: "img" });
    const said = html("output", { class: "live-said" });
    const legend = html("div", { class: "live-portions" });

    // One copy of the model, a column of squares for each stage, with others behind it.
    function devices({ data: copies, tensor: rows, pipeline: columns }) {
      const size = Math.min(14, 400 / columns);
      const [left, top] = [14, 30];
      const behind = range(1, Math.min(copies, 4)).slice(0, -1).reverse();
      const back = behind.map((i) => svg("rect", { class: "live-behind", x: left + 5 * i, y: top + 5 * i, width: size * columns, height: size * rows }));
      const front = range(0, columns - 1).flatMap((x) => range(0, rows - 1).map((y) => svg("rect", { class: "live-device", x: Number((left + x * size).toFixed(1)), y: top + y * size, width: Number((0.85 * size).toFixed(1)), height: Number((0.85 * size).toFixed(1)) })));
      const text = `${many(rows * columns)} of ${many(copies * rows * columns)} devices hold one copy: ${many(columns)} × ${many(rows)}`;
      return [svg("text", { x: left, y: 18 }, text), ...back, ...front];
    }

    // A bar of parts from `top` on, of which `full` fills the width.
    function bar(parts, full, top, text) {
      let from = 14;
      const pieces = Object.values(parts).map((value, i) => {
        const width = Math.min((452 * value) / full, 466 - from);
        const piece = svg("rect", { class: `live-piece live-piece-${i}`, x: from.toFixed(1), y: top, width: Math.max(0, width).toFixed(1), height: 20 });
        from += Math.max(0, width);
        return piece;
      });
      return [svg("text", { x: 14, y: top - 6 }, text), svg("rect", { class: "live-whole-bar", x: 14, y: top, width: 452, height: 20 }), ...pieces];
    }

    const entry = (name, i, value) => html("span", { class: `live-portion live-piece-${i}` }, `${name} ${value}`);

    function update() {
      const shape = MODELS[model.value];
      const split = { data: data.value, tensor: tensor.value, pipeline: pipeline.value, shard: shard.value, micro: 1, chunks: 1, sequence: false, recompute: recompute.checked };
      const cluster = { ...A100, devices: split.data * split.tensor * split.pipeline, link: link.value * GB, network: network.value * GB };
      const work = { batch: batch.value, length: LENGTH, fused: false };
      const wrong = refusal(shape, work, split);
      if (wrong) {
        const sentence = `This cannot be divided so: ${wrong}.`;
        picture.setAttribute("aria-label", sentence);
        picture.replaceChildren(...devices(split));
        said.replaceChildren(sentence);
        legend.replaceChildren();
        return;
      }
      const plan = predict(shape, work, split, cluster);
      const limit = plan.limit === "memory" ? "It does not fit: memory is the limit." : `Most of the time goes into ${WORDS[plan.limit]}.`;
      const days = (300e9 / (work.batch * LENGTH)) * (plan.seconds / 86400);
      const sentence = `A step takes ${many(plan.seconds)} seconds and ${many(plan.bytes / GB)} of ${A100.memory / GB} GB on each of ${many(cluster.devices)} devices. ${limit} Each computes ${many(plan.rate / 1e12)} of 312 TFLOP/s; the model needs ${(100 * plan.utilization).toFixed(0)}% of the peak. 300 billion tokens take ${many(days)} days.`;
      picture.setAttribute("aria-label", sentence);
      picture.replaceChildren(
        ...devices(split),
        ...bar(plan.memory, Math.max(cluster.memory, plan.bytes), 180, `memory of a device, ${many(plan.bytes / GB)} of 80 GB`),
        svg("line", { class: "live-full", x1: 14 + (452 * cluster.memory) / Math.max(cluster.memory, plan.bytes), x2: 14 + (452 * cluster.memory) / Math.max(cluster.memory, plan.bytes), y1: 175, y2: 205 }),
        ...bar(plan.time, plan.seconds, 226, "time of a step"),
      );
      said.replaceChildren(sentence);
      const shares = Object.entries(plan.time).map(([name, value], i) => [name, i, value / plan.seconds]).filter(([, , share]) => share >= 0.005);
      legend.replaceChildren(
        html("div", {}, html("b", {}, "Memory: "), ...Object.entries(plan.memory).flatMap(([name, value], i) => [entry(name, i, `${many(value / GB)} GB`), " "])),
        html("div", {}, html("b", {}, "Time: "), ...shares.flatMap(([name, i, share]) => [entry(name, i, `${Math.round(100 * share)}%`), " "])),
      );
    }

    update();
    return html("div", { class: "live-panel live-cluster" },
      html("div", { class: "live-halves" },
        html("div", { class: "live-stack" }, ...[model, batch, data, tensor, pipeline, shard, link, network].map(({ row }) => row), html("label", { class: "live-row" }, recompute, " Compute activations again")),
        html("div", {}, picture, legend)), said);
  }

  live.cluster = { predict, parameters, MODELS };
  live.mount("cluster", build);
}
