// The encoder–decoder Transformer of this book: its forward pass, under the names of the package `transformer`.
// A sequence is a list of vectors, one for each position, and there is one sentence instead of a batch.
"use strict";
{
  const dot = (a, b) => {
    let sum = 0;
    for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
    return sum;
  };
  const add = (x, y) => x.map((vector, t) => vector.map((value, i) => value + y[t][i]));

  class Linear {
    constructor(state, name) {
      this.weight = state[`${name}.weight`]; // [n_out · n_in], row by row
      this.bias = state[`${name}.bias`]; // [n_out], or undefined
    }

    forward(x) {
      const { weight, bias } = this;
      return x.map((vector) => {
        const result = new Float32Array(weight.length / vector.length);
        for (let i = 0, w = 0; i < result.length; i++) {
          let sum = bias ? bias[i] : 0;
          for (let j = 0; j < vector.length; j++, w++) sum += weight[w] * vector[j];
          result[i] = sum;
        }
        return result;
      });
    }
  }

  // Chapter 2 ------------------------------------------------------------------------------------------

  const embed = (weight, d_model, ids) =>
    ids.map((id) => weight.slice(id * d_model, (id + 1) * d_model).map((value) => value * Math.sqrt(d_model)));

  const sinusoidal_encoding = (position, d_model) =>
    Float32Array.from({ length: d_model }, (_, i) => {
      const angle = position * 10000 ** -((i - (i % 2)) / d_model);
      return i % 2 ? Math.cos(angle) : Math.sin(angle);
    });

  const add_positions = (x, offset) => add(x, x.map((vector, t) => sinusoidal_encoding(offset + t, vector.length)));

  // Chapter 3 ------------------------------------------------------------------------------------------

  const causal_mask = (t, s) => s <= t;

  function softmax(scores) {
    const largest = scores.reduce((a, b) => Math.max(a, b));
    const powers = scores.map((score) => Math.exp(score - largest));
    const total = powers.reduce((a, b) => a + b);
    return powers.map((power) => power / total);
  }

  function scaled_dot_product_attention(query, key, value, mask, scale) {
    const score = (t, s) => (!mask || mask(t, s) ? scale * dot(query[t], key[s]) : -Infinity);
    const weights = query.map((_, t) => softmax(key.map((_, s) => score(t, s))));
    const context = weights.map((row) => {
      const sum = new Float32Array(value[0].length);
      row.forEach((weight, s) => value[s].forEach((feature, i) => (sum[i] += weight * feature)));
      return sum;
    });
    return [context, weights]; // [T][d_k], [T][S]
  }

  class KeyValueCache {
    length = 0; // positions appended so far
    #kept = new Map();

    append = (attention, project) => {
      const kept = this.#kept.get(attention) ?? [[], []];
      project().forEach((vectors, i) => kept[i].push(...vectors));
      this.#kept.set(attention, kept);
      this.length = kept[0].length;
      return kept;
    };

    hold = (attention, project) => {
      if (!this.#kept.has(attention)) this.#kept.set(attention, project());
      return this.#kept.get(attention);
    };

    // A copy that goes on by itself.
    fork() {
      const copy = new KeyValueCache();
      copy.length = this.length;
      for (const [attention, kept] of this.#kept) copy.#kept.set(attention, kept.map((vectors) => [...vectors]));
      return copy;
    }
  }

  class MultiHeadAttention {
    constructor(state, name, { d_model, n_heads }) {
      Object.assign(this, { n_heads, d_k: d_model / n_heads });
      for (const part of ["w_q", "w_k", "w_v", "w_o"]) this[part] = new Linear(state, `${name}.${part}`);
      this.scale = 1 / Math.sqrt(this.d_k);
      this.silent = new Set(); // heads that are switched off: they contribute zeros
    }

    forward(query, key, value, mask, cache) {
      const project = () => [this.w_k.forward(key), this.w_v.forward(value)];
      const q = this.w_q.forward(query);
      const [k, v] = cache ? cache(this, project) : project();
      const context = q.map((vector) => new Float32Array(vector.length));
      this.weights = []; // of the latest call, [H][T][S]
      this.heads = []; // the same with what they are made of and what they give
      for (let head = 0; head < this.n_heads; head++) {
        const start = head * this.d_k;
        const [qs, ks, vs] = [q, k, v].map((x) => x.map((vector) => vector.subarray(start, start + this.d_k)));
        const [part, weights] = scaled_dot_product_attention(qs, ks, vs, mask, this.scale);
        this.weights.push(weights);
        this.heads.push({ q: qs, k: ks, v: vs, weights, context: part });
        if (!this.silent.has(head)) part.forEach((vector, t) => context[t].set(vector, start));
      }
      return this.w_o.forward(context);
    }
  }

  // Chapter 4 ------------------------------------------------------------------------------------------

  class LayerNorm {
    constructor(state, name) {
      this.weight = state[`${name}.weight`];
      this.bias = state[`${name}.bias`];
    }

    forward(x) {
      return x.map((vector) => {
        const mean = vector.reduce((a, b) => a + b) / vector.length;
        const variance = vector.reduce((sum, value) => sum + (value - mean) ** 2, 0) / vector.length;
        const scale = 1 / Math.sqrt(variance + 1e-5);
        return vector.map((value, i) => (value - mean) * scale * this.weight[i] + (this.bias?.[i] ?? 0));
      });
    }
  }

  class FeedForward {
    constructor(state, name) {
      this.w_1 = new Linear(state, `${name}.w_1`);
      this.w_2 = new Linear(state, `${name}.w_2`);
    }

    forward = (x) => this.w_2.forward(this.w_1.forward(x).map((vector) => vector.map((value) => Math.max(value, 0))));
  }

  class Residual {
    constructor(state, name, { norm_first }) {
      this.norm_first = norm_first;
      this.norm = new LayerNorm(state, `${name}.norm`);
    }

    forward(x, sublayer) {
      return this.norm_first ? add(x, sublayer(this.norm.forward(x))) : this.norm.forward(add(x, sublayer(x)));
    }
  }

  class Layer {
    constructor(state, name, config, kinds) {
      for (const kind of kinds) {
        this[`${kind}_attention`] = new MultiHeadAttention(state, `${name}.${kind}_attention`, config);
        this[`${kind}_residual`] = new Residual(state, `${name}.${kind}_residual`, config);
      }
      this.feed_forward = new FeedForward(state, `${name}.feed_forward`);
      this.feed_residual = new Residual(state, `${name}.feed_residual`, config);
    }

    // The sublayers in order, each with the residual that adds it.
    steps(memory, mask, cache) {
      const self = (y) => this.self_attention.forward(y, y, y, mask, cache?.append);
      const cross = (y) => this.cross_attention.forward(y, memory, memory, null, cache?.hold);
      const attentions = [[this.self_residual, self], [this.cross_residual, cross]].slice(0, memory ? 2 : 1);
      return [...attentions, [this.feed_residual, this.feed_forward.forward]];
    }

    forward(x, memory, mask, cache) {
      return this.steps(memory, mask, cache).reduce((state, [residual, sublayer]) => residual.forward(state, sublayer), x);
    }
  }

  // Chapter 5 ------------------------------------------------------------------------------------------

  class Stack {
    constructor(state, name, config, kinds) {
      const [encoder, decoder = encoder] = [config.n_layers].flat(); // one number, or one for each stack
      const layers = [...Array(name === "encoder" ? encoder : decoder).keys()];
      this.layers = layers.map((n) => new Layer(state, `${name}.layers.${n}`, config, kinds));
      this.norm = (config.final_norm ?? config.norm_first) && new LayerNorm(state, `${name}.norm`);
    }

    forward(x, ...others) {
      for (const layer of this.layers) x = layer.forward(x, ...others);
      return this.norm ? this.norm.forward(x) : x;
    }
  }

  class Transformer {
    constructor(config, state) {
      this.config = config;
      this.src_embedding = state["src_embedding.weight"];
      this.tgt_embedding = state["tgt_embedding.weight"] ?? this.src_embedding; // tied: one table for all three
      this.output = new Linear(state, "output.weight" in state ? "output" : "src_embedding");
      this.positions = add_positions;
      this.causal = true;
      this.encoder = new Stack(state, "encoder", config, ["self"]);
      this.decoder = new Stack(state, "decoder", config, ["self", "cross"]);
    }

    encode(src) {
      return this.encoder.forward(this.positions(embed(this.src_embedding, this.config.d_model, src), 0));
    }

    decode(tgt, memory, cache) {
      const x = this.positions(embed(this.tgt_embedding, this.config.d_model, tgt), cache?.length ?? 0);
      const mask = this.causal && tgt.length > 1 ? causal_mask : null; // a single new token may see all before it
      return this.decoder.forward(x, memory, mask, cache);
    }

    forward(src, tgt) {
      return this.output.forward(this.decode(tgt, this.encode(src)));
    }

    attention_maps(src, tgt) {
      this.forward(src, tgt);
      const maps = (stack, kind) => stack.layers.map((layer) => layer[`${kind}_attention`].weights); // [n_layers][H][T][S]
      const { encoder, decoder } = this;
      return { encoder: maps(encoder, "self"), decoder: maps(decoder, "self"), cross: maps(decoder, "cross") };
    }
  }

  // Chapter 8 ------------------------------------------------------------------------------------------

  // The most probable token at every step. Without its causal mask a decoder changes what it has computed for
  // earlier positions whenever a token is added, and no cache can keep it.
  function greedy_search(model, src, max_length) {
    const memory = model.encode(src);
    const cache = model.causal ? new KeyValueCache() : undefined;
    const tokens = [];
    const probabilities = []; // of every token at every step, [L][V]
    while (tokens.length < max_length && tokens.at(-1) !== model.config.eos_id) {
      const read = [model.config.bos_id, ...tokens];
      const hidden = model.decode(cache ? read.slice(-1) : read, memory, cache);
      const [logits] = model.output.forward(hidden.slice(-1));
      probabilities.push(softmax(logits));
      tokens.push(logits.indexOf(logits.reduce((a, b) => Math.max(a, b))));
    }
    return { tokens, probabilities };
  }

  // The words that may come next, by their first token, each completed with the most probable tokens until another word
  // begins; a word's probability is the product of those of its tokens.
  function next_words(model, memory, read, count, begins) {
    const cache = new KeyValueCache();
    const predict = (tokens, cache) => softmax([...model.output.forward(model.decode(tokens, memory, cache).slice(-1))[0]]);
    const likely = (probabilities) => [...probabilities.keys()].sort((a, b) => probabilities[b] - probabilities[a]);
    const first = predict(read, cache);
    return likely(first).slice(0, count).map((token) => {
      const [own, tokens] = [cache.fork(), [token]];
      let probability = first[token];
      while (token !== model.config.eos_id && tokens.length < 20) {
        const probabilities = predict(tokens.slice(-1), own);
        const [best] = likely(probabilities);
        if (begins(best)) break;
        tokens.push(best);
        probability *= probabilities[best];
      }
      return { tokens, probability };
    });
  }

  const length_norm = (length, alpha) => ((5 + length) / 6) ** alpha;

  // The best hypotheses, and for each step its 2K best candidates and what has ended so far. A candidate knows the one
  // that it continues, `from`, and its `fate`: "finished", "kept", or "dropped".
  function beam_search(model, src, beam_size, length_penalty, max_length) {
    const { bos_id, eos_id } = model.config;
    const memory = model.encode(src);
    const by_score = (a, b) => b.score - a.score;
    const steps = [];
    let alive = [{ tokens: [], log_prob: 0, cache: new KeyValueCache() }];
    let ended = [];

    function extend(from) {
      const hidden = model.decode([from.tokens.at(-1) ?? bos_id], memory, from.cache);
      const probabilities = softmax([...model.output.forward(hidden)[0]]);
      return probabilities.map((probability, token) => ({ from, token, log_prob: from.log_prob + Math.log(probability) }));
    }

    while (ended.length < beam_size && steps.length < max_length) {
      const norm = length_norm(steps.length + 1, length_penalty);
      const found = alive.flatMap(extend).sort((a, b) => b.log_prob - a.log_prob).slice(0, 2 * beam_size);
      for (const each of found) Object.assign(each, { tokens: [...each.from.tokens, each.token], score: each.log_prob / norm, fate: "dropped" });
      const ending = found.slice(0, beam_size).filter(({ token }) => token === eos_id);
      alive = found.filter(({ token }) => token !== eos_id).slice(0, beam_size);
      for (const each of ending) each.fate = "finished";
      for (const each of alive) Object.assign(each, { fate: "kept", cache: each.from.cache.fork() });
      ended = [...ended, ...ending].sort(by_score).slice(0, beam_size);
      steps.push({ found, ended });
    }
    const best = ended.length < beam_size ? [...ended, ...alive].sort(by_score).slice(0, beam_size) : ended;
    return { best, steps };
  }

  // Chapter 14 -----------------------------------------------------------------------------------------

  // The states of the decoder, before its first sublayer and after each; the sublayers in `silent`, counted from 1, add nothing.
  function residual_stream(model, memory, tgt, silent) {
    const states = [model.positions(embed(model.tgt_embedding, model.config.d_model, tgt), 0)];
    for (const [residual, sublayer] of model.decoder.layers.flatMap((layer) => layer.steps(memory, causal_mask))) {
      const state = states.at(-1);
      states.push(silent.has(states.length) ? state : residual.forward(state, sublayer));
    }
    return states; // [1 + sublayers][T][d_model]
  }

  // How probable a vector of the stream makes each token, if the model has to stop there.
  function logit_lens(model, vector) {
    const { norm } = model.decoder;
    return softmax(model.output.forward(norm ? norm.forward([vector]) : [vector])[0]);
  }

  globalThis.live ??= {};
  Object.assign(live, {
    residual_stream, logit_lens, sinusoidal_encoding, add_positions, scaled_dot_product_attention, KeyValueCache, Transformer, greedy_search, next_words, length_norm, beam_search,
  });
}
