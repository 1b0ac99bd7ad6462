// A Transformer that learns: forward and backward pass, Adam and the tasks, under the names of the package. What
// `transformer.js` computes for one sentence stands here for a batch, with the gradient of every step beside it.
"use strict";
{
  // One function holds it all, because its text is what a worker is made of. `Numbers` is the precision.
  function learning(Numbers = Float32Array) {
    const PAD = 13, EOS = 12, BOS = 11, MARK = 10; // after the ten digits

    // Numbers with their gradient: rows of equal length, a row for each position of each sequence.
    class Rows {
      constructor(data) {
        this.data = data;
        this.grad = new Numbers(data.length);
      }
    }

    // A step of the forward pass puts the step back on the tape; `backward` goes through the tape from its end.
    class Tape {
      #steps = [];

      record(size, step) {
        const result = new Rows(new Numbers(size));
        this.#steps.push(() => step(result));
        return result;
      }

      backward() {
        while (this.#steps.length) this.#steps.pop()();
      }
    }

    // Chapter 1: Y = X Wᵀ + b, hence dX = dY W, dW = dYᵀ X, db = the sum of dY ----------------------------

    function linear(tape, x, weight, bias, n_in) {
      const n_out = weight.data.length / n_in, n_rows = x.data.length / n_in;
      const y = tape.record(n_rows * n_out, ({ grad }) => {
        add_product(grad, weight.data, x.grad, n_rows, n_out, n_in);
        add_product(transposed(grad, n_out), x.data, weight.grad, n_out, n_rows, n_in);
        if (bias) for (let i = 0; i < grad.length; i++) bias.grad[i % n_out] += grad[i];
      });
      if (bias) for (let row = 0; row < n_rows; row++) y.data.set(bias.data, row * n_out);
      add_product(x.data, transposed(weight.data, n_in), y.data, n_rows, n_in, n_out);
      return y;
    }

    // C += A B, with A [n, k] and B [k, m]; four rows of B at once, so that C is read and written a quarter as often.
    function add_product(A, B, C, n, k, m) {
      for (let row = 0, a = 0; row < n; row++) {
        const from = row * m, to = from + m, last = a + k;
        let b = 0;
        for (; a + 3 < last; a += 4, b += 4 * m) {
          const a_0 = A[a], a_1 = A[a + 1], a_2 = A[a + 2], a_3 = A[a + 3];
          for (let c = from, b_0 = b, b_1 = b + m, b_2 = b_1 + m, b_3 = b_2 + m; c < to; c++, b_0++, b_1++, b_2++, b_3++)
            C[c] += a_0 * B[b_0] + a_1 * B[b_1] + a_2 * B[b_2] + a_3 * B[b_3];
        }
        for (; a < last; a++) for (let c = from; c < to; c++, b++) C[c] += A[a] * B[b];
      }
    }

    function transposed(A, m) {
      const n = A.length / m, result = new Numbers(A.length);
      for (let row = 0, i = 0; row < n; row++) for (let column = 0; column < m; column++, i++) result[column * n + row] = A[i];
      return result;
    }

    function relu(tape, x) {
      const y = tape.record(x.data.length, ({ grad }) => {
        for (let i = 0; i < grad.length; i++) if (x.data[i] > 0) x.grad[i] += grad[i];
      });
      for (let i = 0; i < x.data.length; i++) y.data[i] = Math.max(0, x.data[i]);
      return y;
    }

    // Chapter 2 --------------------------------------------------------------------------------------------

    function sinusoidal_encoding(position, d_model) {
      return Numbers.from({ length: d_model }, (_, i) => {
        const angle = position * 10000 ** -((i - (i % 2)) / d_model);
        return i % 2 ? Math.cos(angle) : Math.sin(angle);
      });
    }

    // Rows of the table, times √d_model, with the positions added unless they are taken away.
    function embed(tape, table, ids, length, d_model, positions) {
      const scale = Math.sqrt(d_model);
      const x = tape.record(ids.length * d_model, ({ grad }) => {
        for (let row = 0, i = 0; row < ids.length; row++)
          for (let j = 0; j < d_model; j++, i++) table.grad[ids[row] * d_model + j] += scale * grad[i];
      });
      const codes = Array.from({ length }, (_, t) => sinusoidal_encoding(t, d_model));
      for (let row = 0, i = 0; row < ids.length; row++)
        for (let j = 0; j < d_model; j++, i++)
          x.data[i] = scale * table.data[ids[row] * d_model + j] + (positions ? codes[row % length][j] : 0);
      return x;
    }

    // Chapter 3: with P = softmax(S), dS = P ⊙ (dP − the sum of P ⊙ dP over a row) -------------------------

    // `visible(b, t, s)` says whether query t of sequence b may attend to key s. Heads before `first_head` add nothing.
    function attention(tape, q, k, v, { B, T, S, d_model, n_heads, scale, visible, first_head = 0 }) {
      const d_k = d_model / n_heads;
      const weights = new Numbers(B * n_heads * T * S);
      const row_of = (b, head, t) => ((b * n_heads + head) * T + t) * S;
      const dP = new Numbers(S);
      const each = (step) => {
        for (let b = 0; b < B; b++)
          for (let head = first_head; head < n_heads; head++)
            for (let t = 0; t < T; t++) step((b * T + t) * d_model + head * d_k, b * S * d_model + head * d_k, row_of(b, head, t), b, t);
      };
      const context = tape.record(q.data.length, ({ grad }) => each((query, keys, row) => {
        let total = 0;
        for (let s = 0, key = keys; s < S; s++, key += d_model) {
          const p = weights[row + s];
          dP[s] = 0;
          for (let i = 0; i < d_k; i++) {
            dP[s] += grad[query + i] * v.data[key + i];
            v.grad[key + i] += p * grad[query + i];
          }
          total += p * dP[s];
        }
        for (let s = 0, key = keys; s < S; s++, key += d_model) {
          const dS = scale * weights[row + s] * (dP[s] - total);
          if (dS === 0) continue;
          for (let i = 0; i < d_k; i++) {
            q.grad[query + i] += dS * k.data[key + i];
            k.grad[key + i] += dS * q.data[query + i];
          }
        }
      }));
      each((query, keys, row, b, t) => {
        let largest = -Infinity;
        for (let s = 0, key = keys; s < S; s++, key += d_model) {
          let score = -Infinity;
          if (visible(b, t, s)) {
            score = 0;
            for (let i = 0; i < d_k; i++) score += q.data[query + i] * k.data[key + i];
            score *= scale;
          }
          weights[row + s] = score;
          largest = Math.max(largest, score);
        }
        let total = 0;
        for (let s = 0; s < S; s++) total += weights[row + s] = Math.exp(weights[row + s] - largest);
        for (let s = 0, key = keys; s < S; s++, key += d_model) {
          const p = (weights[row + s] /= total);
          for (let i = 0; i < d_k; i++) context.data[query + i] += p * v.data[key + i];
        }
      });
      return { context, weights }; // [B·T, d_model], [B, H, T, S]
    }

    // Chapter 4 --------------------------------------------------------------------------------------------

    function dropout(tape, x, rate, random) {
      if (!rate || !random) return x;
      const kept = Numbers.from(x.data, () => (random() < rate ? 0 : 1 / (1 - rate)));
      const y = tape.record(kept.length, ({ grad }) => {
        for (let i = 0; i < kept.length; i++) x.grad[i] += kept[i] * grad[i];
      });
      for (let i = 0; i < kept.length; i++) y.data[i] = kept[i] * x.data[i];
      return y;
    }

    function add(tape, a, b) {
      const y = tape.record(a.data.length, ({ grad }) => {
        for (let i = 0; i < grad.length; i++) {
          a.grad[i] += grad[i];
          b.grad[i] += grad[i];
        }
      });
      for (let i = 0; i < a.data.length; i++) y.data[i] = a.data[i] + b.data[i];
      return y;
    }

    // With n = (x − mean) / σ and g = dY ⊙ w: dX = (g − mean of g − n · mean of g ⊙ n) / σ, row by row.
    function layer_norm(tape, x, weight, bias) {
      const d = weight.data.length;
      const normed = new Numbers(x.data.length), scales = new Numbers(x.data.length / d);
      const y = tape.record(x.data.length, ({ grad }) => {
        for (let row = 0, start = 0; row < scales.length; row++, start += d) {
          let mean = 0, along = 0;
          for (let j = 0; j < d; j++) {
            const g = grad[start + j];
            weight.grad[j] += g * normed[start + j];
            bias.grad[j] += g;
            mean += (g * weight.data[j]) / d;
            along += (g * weight.data[j] * normed[start + j]) / d;
          }
          for (let j = 0; j < d; j++)
            x.grad[start + j] += scales[row] * (grad[start + j] * weight.data[j] - mean - normed[start + j] * along);
        }
      });
      for (let row = 0, start = 0; row < scales.length; row++, start += d) {
        let mean = 0, variance = 0;
        for (let j = 0; j < d; j++) mean += x.data[start + j] / d;
        for (let j = 0; j < d; j++) variance += (x.data[start + j] - mean) ** 2 / d;
        scales[row] = 1 / Math.sqrt(variance + 1e-5);
        for (let j = 0; j < d; j++) {
          normed[start + j] = (x.data[start + j] - mean) * scales[row];
          y.data[start + j] = normed[start + j] * weight.data[j] + bias.data[j];
        }
      }
      return y;
    }

    // Chapter 5 --------------------------------------------------------------------------------------------

    const names_of = (part) => ["w_q", "w_k", "w_v", "w_o"].map((name) => `${part}.${name}`);

    // The model's parameters by the package's names, linear layers Xavier-uniform, embeddings N(0, 1/d_model).
    function initialize({ d_model, d_ff, n_layers, norm_first, vocab_size }, random) {
      const state = {};
      const normal = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
      const fill = (name, size, value) => (state[name] = new Rows(Numbers.from({ length: size }, value)));
      const dense = (name, n_in, n_out) => {
        const bound = Math.sqrt(6 / (n_in + n_out));
        fill(`${name}.weight`, n_in * n_out, () => bound * (2 * random() - 1));
        fill(`${name}.bias`, n_out, () => 0);
      };
      const norm = (name) => {
        fill(`${name}.weight`, d_model, () => 1);
        fill(`${name}.bias`, d_model, () => 0);
      };
      fill("src_embedding.weight", vocab_size * d_model, () => normal() / Math.sqrt(d_model));
      for (const [stack, kinds] of [["encoder", ["self"]], ["decoder", ["self", "cross"]]]) {
        for (let n = 0; n < n_layers; n++) {
          const layer = `${stack}.layers.${n}`;
          for (const kind of kinds) for (const name of names_of(`${layer}.${kind}_attention`)) dense(name, d_model, d_model);
          dense(`${layer}.feed_forward.w_1`, d_model, d_ff);
          dense(`${layer}.feed_forward.w_2`, d_ff, d_model);
          for (const kind of [...kinds, "feed"]) norm(`${layer}.${kind}_residual.norm`);
        }
        if (norm_first) norm(`${stack}.norm`);
      }
      return state;
    }

    const WHOLE = { positions: true, mask: true, scale: true, residuals: true, cross: true, head: true };

    // `parts` says what the model has; each of them can be taken away.
    class Learner {
      constructor(config, state, parts = {}) {
        Object.assign(this, { config, state, parts: { ...WHOLE, ...parts }, maps: {} });
      }

      #linear = (tape, x, name, n_in) => linear(tape, x, this.state[`${name}.weight`], this.state[`${name}.bias`], n_in);
      #norm = (tape, x, name) => layer_norm(tape, x, this.state[`${name}.weight`], this.state[`${name}.bias`]);

      #attention(tape, name, x, memory, sizes, visible) {
        const { d_model, n_heads } = this.config;
        const scale = this.parts.scale ? 1 / Math.sqrt(d_model / n_heads) : 1;
        const [w_q, w_k, w_v, w_o] = names_of(name);
        const q = this.#linear(tape, x, w_q, d_model);
        const [k, v] = [w_k, w_v].map((each) => this.#linear(tape, memory, each, d_model));
        const { context, weights } = attention(tape, q, k, v, { ...sizes, d_model, n_heads, scale, visible, first_head: this.parts.head ? 0 : 1 });
        this.maps[name] = { weights, ...sizes, n_heads };
        return this.#linear(tape, context, w_o, d_model);
      }

      #feed_forward(tape, name, x) {
        const inner = relu(tape, this.#linear(tape, x, `${name}.w_1`, this.config.d_model));
        return this.#linear(tape, inner, `${name}.w_2`, this.config.d_ff);
      }

      #residual(tape, name, x, sublayer, random) {
        const { norm_first, dropout: rate } = this.config;
        const around = (y) => (this.parts.residuals ? add(tape, x, dropout(tape, y, rate, random)) : dropout(tape, y, rate, random));
        if (norm_first) return around(sublayer(this.#norm(tape, x, `${name}.norm`)));
        return this.#norm(tape, around(sublayer(x)), `${name}.norm`);
      }

      #stack(tape, stack, ids, B, kinds, random) {
        const { d_model, n_layers, norm_first, dropout: rate } = this.config;
        const embedded = embed(tape, this.state["src_embedding.weight"], ids, ids.length / B, d_model, this.parts.positions);
        let x = dropout(tape, embedded, rate, random);
        for (let n = 0; n < n_layers; n++) {
          const layer = `${stack}.layers.${n}`;
          for (const [kind, others, S, visible] of kinds) {
            const sizes = { B, T: ids.length / B, S };
            const sublayer = (y) => this.#attention(tape, `${layer}.${kind}_attention`, y, others ?? y, sizes, visible);
            x = this.#residual(tape, `${layer}.${kind}_residual`, x, sublayer, random);
          }
          x = this.#residual(tape, `${layer}.feed_residual`, x, (y) => this.#feed_forward(tape, `${layer}.feed_forward`, y), random);
        }
        return norm_first ? this.#norm(tape, x, `${stack}.norm`) : x;
      }

      #real = (src, B) => (b, t, s) => src[(b * src.length) / B + s] !== PAD;

      encode(tape, src, B, random) {
        return this.#stack(tape, "encoder", src, B, [["self", null, src.length / B, this.#real(src, B)]], random);
      }

      // Logits [B·T, V] for tgt [B·T], after the encoder has read src [B·S]; without `random` there is no dropout.
      decode(tape, tgt, memory, src, B, random) {
        const earlier = this.parts.mask ? (b, t, s) => s <= t : () => true;
        const cross = this.parts.cross ? [["cross", memory, src.length / B, this.#real(src, B)]] : [];
        const hidden = this.#stack(tape, "decoder", tgt, B, [["self", null, tgt.length / B, earlier], ...cross], random);
        return linear(tape, hidden, this.state["src_embedding.weight"], null, this.config.d_model);
      }

      forward(tape, src, tgt, B, random) {
        return this.decode(tape, tgt, this.encode(tape, src, B, random), src, B, random);
      }

      // The most probable tokens, one after the other: [B][length].
      greedy_search(src, B, length) {
        const { vocab_size } = this.config;
        const tokens = Array.from({ length: B }, () => []);
        const memory = this.encode(new Tape(), src, B);
        for (let t = 0; t < length; t++) {
          const logits = this.decode(new Tape(), Int32Array.from(tokens.flatMap((each) => [BOS, ...each])), memory, src, B).data;
          for (let b = 0; b < B; b++) {
            const start = (b * (t + 1) + t) * vocab_size;
            const row = logits.subarray(start, start + vocab_size);
            tokens[b].push(row.indexOf(row.reduce((x, y) => Math.max(x, y))));
          }
        }
        return tokens.map((each) => (each.includes(EOS) ? each.slice(0, each.indexOf(EOS)) : each));
      }
    }

    // Chapter 6: the mean loss of the real target tokens; it puts (softmax − target) / tokens into the logits' gradient.
    function label_smoothed_cross_entropy(logits, targets, smoothing) {
      const V = logits.data.length / targets.length;
      const real = targets.reduce((count, target) => count + (target !== PAD), 0);
      let loss = 0;
      targets.forEach((target, row) => {
        if (target === PAD) return;
        const z = logits.data.subarray(row * V, (row + 1) * V);
        const largest = z.reduce((x, y) => Math.max(x, y));
        const log_total = largest + Math.log(z.reduce((sum, each) => sum + Math.exp(each - largest), 0));
        for (let j = 0; j < V; j++) {
          const wanted = smoothing / V + (j === target ? 1 - smoothing : 0);
          loss += wanted * (log_total - z[j]);
          logits.grad[row * V + j] = (Math.exp(z[j] - log_total) - wanted) / real;
        }
      });
      return loss / real;
    }

    // Chapter 7 --------------------------------------------------------------------------------------------

    // As `noam_rate`, but said by its peak.
    const rate_of = (step, { peak, warmup }) => peak * Math.min(step / warmup, Math.sqrt(warmup / step));

    class Adam {
      #step = 0;
      #moments = new Map();

      update(state, rate, beta_1 = 0.9, beta_2 = 0.98, eps = 1e-9) {
        this.#step++;
        const [c_1, c_2] = [1 - beta_1 ** this.#step, 1 - beta_2 ** this.#step];
        for (const [name, { data, grad }] of Object.entries(state)) {
          if (!this.#moments.has(name)) this.#moments.set(name, [new Numbers(data.length), new Numbers(data.length)]);
          const [m, v] = this.#moments.get(name);
          for (let i = 0; i < data.length; i++) {
            m[i] += (1 - beta_1) * (grad[i] - m[i]);
            v[i] += (1 - beta_2) * (grad[i] * grad[i] - v[i]);
            data[i] -= (rate * m[i]) / c_1 / (Math.sqrt(v[i] / c_2) + eps);
          }
        }
      }
    }

    // Chapter 9 --------------------------------------------------------------------------------------------

    // The 2nd, 4th, … occurrence of a digit becomes X, then the whole is reversed.
    function reverse_and_mark(digits) {
      const seen = new Array(10).fill(0);
      return digits.map((digit) => (++seen[digit] % 2 ? digit : MARK)).reverse();
    }

    function add_one(digits) {
      const result = [...digits];
      for (let i = result.length - 1; i >= 0; i--) {
        result[i] = (result[i] + 1) % 10;
        if (result[i]) break;
      }
      return result; // 99 becomes 00
    }

    const TASKS = {
      copy: (digits) => [...digits],
      reverse: (digits) => [...digits].reverse(),
      "reverse, with X": reverse_and_mark,
      sort: (digits) => [...digits].sort((a, b) => a - b),
      "add one": add_one,
    };

    // Numbers from 0 up to 1, always the same ones from a seed (mulberry32).
    function generator(seed) {
      let state = seed >>> 0;
      return () => {
        state = (state + 0x6d2b79f5) >>> 0;
        let t = Math.imul(state ^ (state >>> 15), state | 1);
        t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
        return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
      };
    }

    const padded = (rows, length) => Int32Array.from(rows.flatMap((row) => [...row, ...new Array(length - row.length).fill(PAD)]));

    // [source, target] pairs as a batch: what is read, what the decoder sees, and what it should say.
    function batch_of(pairs) {
      const S = Math.max(...pairs.map(([src]) => src.length)), T = 1 + Math.max(...pairs.map(([, tgt]) => tgt.length));
      return {
        B: pairs.length,
        T,
        src: padded(pairs.map(([src]) => src), S),
        tgt: padded(pairs.map(([, tgt]) => [BOS, ...tgt]), T),
        targets: padded(pairs.map(([, tgt]) => [...tgt, EOS]), T),
      };
    }

    // A training run: the same settings give the same run.
    class Run {
      constructor(settings) {
        const { task, digits, seed, parts, d_model, n_heads, n_layers, dropout: rate, norm_first } = settings;
        this.settings = settings;
        this.config = { d_model, n_heads, n_layers, dropout: rate, norm_first, d_ff: 2 * d_model, vocab_size: 14 };
        const [weights, data, drops] = [seed, seed + 1000, seed + 2000].map(generator);
        Object.assign(this, { data, drops, adam: new Adam(), step: 0 });
        this.model = new Learner(this.config, initialize(this.config, weights), parts);
        const held = generator(seed + 3000);
        this.unseen = this.#unseen(Math.min(64, 10 ** digits / 10), held, digits, task);
        this.kept = new Set(this.unseen.map(([src]) => src.join("")));
      }

      #pair = (random, digits, task) => {
        const src = Array.from({ length: digits }, () => Math.floor(10 * random()));
        return [src, TASKS[task](src)];
      };

      #unseen(number, random, digits, task) {
        const found = new Map();
        while (found.size < number) {
          const pair = this.#pair(random, digits, task);
          found.set(pair[0].join(""), pair);
        }
        return [...found.values()];
      }

      #draw() {
        const { digits, task } = this.settings;
        for (;;) {
          const pair = this.#pair(this.data, digits, task);
          if (!this.kept.has(pair[0].join(""))) return pair;
        }
      }

      // One update; returns the loss before it.
      update() {
        const { src, tgt, targets, B } = batch_of(Array.from({ length: 32 }, () => this.#draw()));
        for (const { grad } of Object.values(this.model.state)) grad.fill(0);
        const tape = new Tape();
        const logits = this.model.forward(tape, src, tgt, B, this.drops);
        const loss = label_smoothed_cross_entropy(logits, targets, this.settings.smoothing);
        tape.backward();
        this.adam.update(this.model.state, rate_of(++this.step, this.settings));
        return loss;
      }

      // What the model says to sequences that it never trains on, and the share that is right from end to end.
      evaluate() {
        const { src, B, T } = batch_of(this.unseen);
        const answers = this.model.greedy_search(src, B, T);
        const right = answers.map((answer, b) => answer.join() === this.unseen[b][1].join());
        return { answers, right, share: right.filter(Boolean).length / B };
      }

      // How the model answers one sequence with these parameters, token by token: what its decoder reads, the probabilities
      // of each next token, the tokens that it writes, and every attention's maps, [name, weights, H, T, S].
      look(src, state = this.model.state) {
        const model = new Learner(this.config, state, this.settings.parts);
        const [read, written, next] = [[BOS], [], []];
        for (;;) {
          const logits = model.forward(new Tape(), Int32Array.from(src), Int32Array.from(read), 1).data.slice(-this.config.vocab_size);
          const largest = Math.max(...logits);
          const total = logits.reduce((sum, each) => sum + Math.exp(each - largest), 0);
          next.push([...logits].map((each) => Math.exp(each - largest) / total));
          written.push(logits.indexOf(largest));
          if (written.at(-1) === EOS || written.length > src.length) break;
          read.push(written.at(-1));
        }
        const maps = Object.entries(model.maps).map(([name, { weights, n_heads, T, S }]) => ({ name, weights: [...weights], n_heads, T, S }));
        return { src, read, written, next, maps };
      }
    }

    const steps = { linear, relu, add };
    return { Tape, Rows, steps, Learner, Adam, Run, TASKS, batch_of, generator, initialize, label_smoothed_cross_entropy, rate_of };
  }

  globalThis.live ??= {};
  live.learning = learning;
}
