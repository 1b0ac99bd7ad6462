// The decoder-only model of Chapter 15: its forward pass, under the names of `transformer.modern`. It reads one text.
"use strict";
{
  const product = (weight, x) =>
    Float32Array.from({ length: weight.length / x.length }, (_, i) => {
      let sum = 0;
      for (let j = 0; j < x.length; j++) sum += weight[i * x.length + j] * x[j];
      return sum;
    });

  function rms_norm(weight, x, eps) {
    const mean_square = x.reduce((sum, value) => sum + value * value, 0) / x.length;
    return x.map((value, i) => (value / Math.sqrt(mean_square + eps)) * weight[i]);
  }

  // Features i and i + d_k / 2 of each head are a pair.
  function rotate(x, position, d_k, base) {
    return x.map((value, n) => {
      const [i, half] = [n % d_k, d_k / 2];
      const angle = position * base ** ((-2 * (i % half)) / d_k);
      return value * Math.cos(angle) + (i < half ? -x[n + half] : x[n - half]) * Math.sin(angle);
    });
  }

  function softmax(scores) {
    const largest = scores.reduce((a, b) => Math.max(a, b));
    const powers = [...scores].map((score) => Math.exp(score - largest));
    const total = powers.reduce((a, b) => a + b);
    return powers.map((power) => power / total);
  }

  class LanguageModel {
    constructor(config, state) {
      Object.assign(this, { config, state });
    }

    // Keys and values of each layer: none so far.
    empty = () => Array.from({ length: this.config.n_layers }, () => ({ keys: [], values: [] }));

    // The logits after each of the ids, which follow those in the cache.
    forward(ids, _, cache = this.empty()) {
      return ids.map((id) => this.step(id, cache));
    }

    step(id, cache) {
      const { state, config } = this;
      const { d_model, norm_eps } = config;
      let x = state["embedding.weight"].slice(id * d_model, (id + 1) * d_model);
      cache.forEach((kept, n) => {
        const weight = (part) => state[`layers.${n}.${part}.weight`];
        const plus = (change) => (x = x.map((value, i) => value + change[i]));
        plus(this.attention(weight, rms_norm(weight("attention_norm"), x, norm_eps), kept));
        const y = rms_norm(weight("feed_norm"), x, norm_eps);
        const gate = product(weight("feed_forward.w_gate"), y);
        const hidden = product(weight("feed_forward.w_1"), y).map((value, i) => (value * gate[i]) / (1 + Math.exp(-gate[i])));
        plus(product(weight("feed_forward.w_2"), hidden));
      });
      return product(state["output.weight"] ?? state["embedding.weight"], rms_norm(state["norm.weight"], x, norm_eps));
    }

    attention(weight, y, { keys, values }) {
      const { d_model, n_heads, n_kv_heads, rotary_base } = this.config;
      const d_k = d_model / n_heads;
      const turned = (part) => rotate(product(weight(`attention.${part}`), y), keys.length, d_k, rotary_base);
      const query = turned("w_q");
      keys.push(turned("w_k"));
      values.push(product(weight("attention.w_v"), y));
      const context = new Float32Array(query.length);
      for (let head = 0; head < n_heads; head++) {
        const [own, shared] = [head * d_k, Math.floor((head * n_kv_heads) / n_heads) * d_k];
        const scores = keys.map((key) => {
          let sum = 0;
          for (let i = 0; i < d_k; i++) sum += query[own + i] * key[shared + i];
          return sum / Math.sqrt(d_k);
        });
        softmax(scores).forEach((share, s) => {
          for (let i = 0; i < d_k; i++) context[own + i] += share * values[s][shared + i];
        });
      }
      return product(weight("attention.w_o"), context);
    }
  }

  const fork = (cache) => cache.map(({ keys, values }) => ({ keys: [...keys], values: [...values] }));
  const likeliest = (probabilities) => probabilities.indexOf(Math.max(...probabilities));

  // A word that begins with a token, completed with the most probable tokens until another word begins; its probability
  // is the product of those of its tokens.
  function whole_word(model, cache, token, probability, stops) {
    const [own, tokens] = [fork(cache), [token]];
    while (!stops(tokens.at(-1), true) && tokens.length < 20) {
      const probabilities = softmax(model.step(tokens.at(-1), own));
      const best = likeliest(probabilities);
      if (stops(best, false)) break;
      tokens.push(best);
      probability *= probabilities[best];
    }
    return { tokens, probability };
  }

  // The words that may follow some ids, by their first token. `stops` says of a token whether no other can follow it in
  // its word, or whether it can follow none. The cache has read some of the ids, and then has read all.
  function words_after(model, ids, count, stops, cache = model.empty()) {
    const probabilities = softmax(model.forward(ids.slice(cache[0].keys.length), [], cache).at(-1));
    const likely = [...probabilities.keys()].sort((a, b) => probabilities[b] - probabilities[a]).slice(0, count);
    return { probabilities, words: likely.map((token) => whole_word(model, cache, token, probabilities[token], stops)) };
  }

  Object.assign(live, { LanguageModel, words_after });
}
