"""Right solutions of the workbook's pieces in other hands: other names, orders, functions, loops."""

from __future__ import annotations

import re

TEXT = r"""
### 01-gradients/sigmoid
def sigmoid(x):
    return torch.exp(x) / (torch.exp(x) + 1)
### 01-gradients/gradient_by_hand
def gradient_by_hand(params, x, y):
    w, b = torch.zeros_like(params["w"]), torch.zeros(())
    for row, label in zip(x, y):
        error = 1 / (1 + (-(row @ params["w"] + params["b"])).exp()) - label
        w, b = w + error * row, b + error
    return {"b": b / len(x), "w": w / len(x)}
### 01-gradients/finite_differences
def finite_differences(f, params, h=1e-5):
    found = {}
    for name in params:
        slopes = []
        for i in range(params[name].numel()):
            values = []
            for sign in (1, -1):
                moved = params[name].clone().flatten()
                moved[i] = moved[i] + sign * h
                values.append(f(params | {name: moved.reshape(params[name].shape)}))
            slopes.append((values[0] - values[1]) / (h + h))
        found[name] = torch.stack(slopes).reshape(params[name].shape)
    return found
### 01-gradients/log_loss
def log_loss(z, y):
    return F.binary_cross_entropy_with_logits(z, y)
### 01-gradients/network_backward
def network_backward(params, x, y):
    leaves = {name: p.detach().clone().requires_grad_() for name, p in params.items()}
    hidden = torch.relu(x @ leaves["w_1"] + leaves["b_1"])
    z = (hidden @ leaves["w_2"] + leaves["b_2"]).squeeze(1)
    loss = F.binary_cross_entropy_with_logits(z, y)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()))))
### 01-gradients/log_softmax
def log_softmax(z):
    z = z - z.max(-1, keepdim=True).values
    return z - z.exp().sum(-1, keepdim=True).log()
### 02-embedding/TokenEmbedding
class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size, d_model, pad_id=None):
        super().__init__()
        self.table = nn.Embedding(vocab_size, d_model, padding_idx=pad_id)
        self.table.weight.data = torch.randn(vocab_size, d_model) / d_model**0.5

    def forward(self, ids):
        return self.table(ids) * self.table.embedding_dim**0.5
### 02-embedding/shift
def shift(k, d):
    matrix = torch.zeros(d, d, dtype=torch.float64)
    for i in range(0, d, 2):
        angle = k / 10000 ** (i / d)
        matrix[i, i] = matrix[i + 1, i + 1] = math.cos(angle)
        matrix[i, i + 1], matrix[i + 1, i] = math.sin(angle), -math.sin(angle)
    return matrix
### 02-embedding/sinusoidal_encoding
def sinusoidal_encoding(length, d_model, dtype=None):
    table = torch.zeros(length, d_model, dtype=torch.float64)
    for p in range(length):
        for j in range(d_model):
            angle = p / 10000 ** ((j - j % 2) / d_model)
            table[p, j] = math.cos(angle) if j % 2 else math.sin(angle)
    return table.to(dtype if dtype is not None else torch.get_default_dtype())
### 02-embedding/PositionalEncoding
class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout, max_length):
        super().__init__()
        self.p, self.max_length = dropout, max_length
        self.register_buffer("pe", sinusoidal_encoding(max_length, d_model, torch.float64), persistent=False)

    def forward(self, x, offset=0):
        if offset < 0 or offset + x.shape[1] > self.max_length:
            raise ValueError(f"positions {offset} and on do not fit into {self.max_length}")
        x = x + self.pe[offset : offset + x.shape[1]].to(x.dtype)
        if self.training and self.p:
            x = x * (torch.rand_like(x) >= self.p) / (1 - self.p)
        return x
### 03-attention/padding_mask
def padding_mask(ids, pad_id=0):
    return torch.logical_not(ids.eq(pad_id)).reshape(ids.shape[0], 1, 1, ids.shape[1])
### 03-attention/causal_mask
def causal_mask(length, device=None):
    place = torch.arange(length, device=device)
    return (place[None, :] <= place[:, None])[None, None]
### 03-attention/scaled_dot_product_attention
def scaled_dot_product_attention(query, key, value, mask=None, dropout=0.0):
    dtype = value.dtype
    if dtype in (torch.float16, torch.bfloat16):
        query, key, value = query.float(), key.float(), value.float()
    scores = torch.einsum("...td,...sd->...ts", query, key) * query.shape[-1] ** -0.5
    if mask is not None:
        check_mask(mask, query, key)
        scores = scores.masked_fill(~mask, float("-inf"))
        nothing = ~mask.any(-1, keepdim=True)
        scores = scores.masked_fill(nothing, 0.0)
    weights = torch.exp(scores - scores.max(-1, keepdim=True).values)
    weights = weights / weights.sum(-1, keepdim=True)
    if mask is not None:
        weights = weights.masked_fill(nothing, 0.0)
    if dropout > 0:
        weights = weights * (torch.rand_like(weights) >= dropout) / (1 - dropout)
    return torch.einsum("...ts,...sd->...td", weights, value).to(dtype), weights.to(dtype)
### 03-attention/attention_in_blocks
def attention_in_blocks(q, k, v, size=2):
    best = q.new_full((len(q),), -math.inf)
    below, above = q.new_zeros(len(q)), q.new_zeros(len(q), v.shape[1])
    for start in range(0, len(k), size):
        scores = torch.einsum("td,sd->ts", q, k[start : start + size]) / math.sqrt(q.shape[1])
        top = torch.maximum(best, scores.amax(1))
        old = torch.exp(best - top)
        for s in range(scores.shape[1]):
            weight = torch.exp(scores[:, s] - top)
            below, above = below * old + weight, above * old[:, None] + weight[:, None] * v[start + s]
            old = torch.ones_like(old)
        best = top
    return above / below[:, None]
### 03-attention/KeyValueCache
class KeyValueCache:
    def __init__(self):
        self.length = 0
        self.mine, self.memory = {}, {}

    def append(self, attention, project):
        key, value = project()
        if attention in self.mine:
            before = self.mine[attention]
            key, value = torch.cat([before[0], key], dim=2), torch.cat([before[1], value], dim=2)
        self.mine[attention] = key, value
        self.length = key.size(2)
        return key, value

    def hold(self, attention, project):
        if attention not in self.memory:
            self.memory[attention] = project()
        return self.memory[attention]

    def reorder(self, rows):
        for store in (self.mine, self.memory):
            for attention, (key, value) in list(store.items()):
                store[attention] = key[rows], value[rows]
### 03-attention/MultiHeadAttention
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_heads, dropout=0.0, bias=True, kdim=None, vdim=None):
        super().__init__()
        if n_heads < 1 or d_model % n_heads != 0:
            raise ValueError("d_model must be a multiple of n_heads")
        self.h, self.p = n_heads, dropout
        self.q_proj = nn.Linear(d_model, d_model, bias=bias)
        self.k_proj = nn.Linear(d_model if kdim is None else kdim, d_model, bias=bias)
        self.v_proj = nn.Linear(d_model if vdim is None else vdim, d_model, bias=bias)
        self.out_proj = nn.Linear(d_model, d_model, bias=bias)

    def forward(self, query, key, value, mask=None, need_weights=False, cache=None):
        def heads(x):
            return x.view(x.shape[0], x.shape[1], self.h, -1).permute(0, 2, 1, 3)

        def project():
            return heads(self.k_proj(key)), heads(self.v_proj(value))

        q = heads(self.q_proj(query))
        k, v = cache(self, project) if cache is not None else project()
        context, weights = scaled_dot_product_attention(q, k, v, mask, self.p * self.training)
        context = context.permute(0, 2, 1, 3).reshape(query.shape)
        return self.out_proj(context), weights if need_weights else None
### 04-layers/drop
def drop(x, p, generator):
    keep = torch.empty_like(x).bernoulli_(1 - p, generator=generator)
    return keep * x / (1 - p)
### 04-layers/LayerNorm
class LayerNorm(nn.Module):
    def __init__(self, d_model, eps=1e-5, bias=True):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d_model))
        self.shift = nn.Parameter(torch.zeros(d_model)) if bias else None
        self.eps = eps

    def forward(self, x):
        variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
        x = self.gain * ((x - mean) * (variance + self.eps).rsqrt())
        return x if self.shift is None else x + self.shift
### 04-layers/FeedForward
class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff, dropout=0.0, activation="relu", bias=True):
        super().__init__()
        self.fc_out, self.fc_in = nn.Linear(d_ff, d_model, bias), nn.Linear(d_model, d_ff, bias)
        self.act, self.p = getattr(F, activation), dropout

    def forward(self, x):
        hidden = self.act(self.fc_in(x))
        if self.training:
            hidden = hidden.masked_fill(torch.rand_like(hidden) < self.p, 0.0) / (1 - self.p)
        return self.fc_out(hidden)
### 04-layers/Residual
class Residual(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.ln = config, nn.LayerNorm(config.d_model, bias=config.bias)

    def forward(self, x, sublayer):
        y = sublayer(self.ln(x) if self.config.norm_first else x)
        p = self.config.dropout if self.training else 0.0
        y = x + y * torch.bernoulli(torch.full_like(y, 1 - p)) / (1 - p)
        return y if self.config.norm_first else self.ln(y)
### 04-layers/EncoderLayer
class EncoderLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attention, self.self_residual = _attention(config), Residual(config)
        self.feed_forward, self.feed_residual = _feed_forward(config), Residual(config)

    def forward(self, x, mask=None):
        def attend(y):
            context, _ = self.self_attention(query=y, key=y, value=y, mask=mask)
            return context

        return self.feed_residual(self.self_residual(x, attend), lambda y: self.feed_forward(y))
### 04-layers/DecoderLayer
class DecoderLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attn, self.res1 = _attention(config), Residual(config)
        self.cross, self.res2 = _attention(config), Residual(config)
        self.ffn, self.res3 = _feed_forward(config), Residual(config)

    def forward(self, x, memory, self_mask=None, memory_mask=None, cache=None):
        append = None if cache is None else cache.append
        hold = None if cache is None else cache.hold
        x = self.res1(x, lambda y: self.attn(y, y, y, self_mask, cache=append)[0])
        x = self.res2(x, lambda y: self.cross(y, memory, memory, memory_mask, cache=hold)[0])
        return self.res3(x, self.ffn)
### 05-model/Encoder
class Encoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        layers = []
        for _ in range(config.depths[0]):
            layers.append(EncoderLayer(config))
        self.blocks, self.top = nn.Sequential(*layers), _final_norm(config)

    def forward(self, x, mask=None):
        for block in self.blocks:
            x = block(x, mask=mask)
        return self.top(x)
### 05-model/Decoder
class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList([DecoderLayer(config) for _ in range(config.depths[1])])
        if config.has_final_norm:
            self.norm = LayerNorm(config.d_model, bias=config.bias)

    def forward(self, x, memory, self_mask=None, memory_mask=None, cache=None):
        for i in range(len(self.layers)):
            x = self.layers[i](x, memory, self_mask=self_mask, memory_mask=memory_mask, cache=cache)
        return self.norm(x) if hasattr(self, "norm") else x
### 05-model/initialize
def initialize(module):
    if type(module) is nn.Linear:
        bound = (6 / sum(module.weight.shape)) ** 0.5
        with torch.no_grad():
            module.weight.copy_((2 * torch.rand(module.weight.shape) - 1) * bound)
            if module.bias is not None:
                module.bias.fill_(0)
### 05-model/Transformer
class Transformer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        sizes = config.d_model, config.pad_id
        self.src_embedding = TokenEmbedding(config.src_vocab_size, *sizes)
        self.tgt_embedding = TokenEmbedding(config.tgt_vocab_size, *sizes)
        self.output = nn.Linear(config.d_model, config.tgt_vocab_size, bias=False)
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        self.positions = PositionalEncoding(config.d_model, config.dropout, config.max_length)
        for module in self.modules():
            initialize(module)
        if config.tie_embeddings:
            self.tgt_embedding.weight = self.src_embedding.weight
            self.output.weight = self.src_embedding.weight

    def src_mask(self, src):
        return (src != self.config.pad_id)[:, None, None, :]

    def encode(self, src):
        check_ids("src", src, self.config.src_vocab_size)
        check_positions("src", src.size(1), self.config.max_length)
        x = self.positions(self.src_embedding(src))
        return self.encoder(x, mask=self.src_mask(src))

    def decode(self, tgt, memory, src_mask=None, cache=None):
        start = 0 if cache is None else cache.length
        check_ids("tgt", tgt, self.config.tgt_vocab_size)
        check_memory(memory, tgt, self.config.d_model)
        check_positions("tgt", start + tgt.size(1), self.config.max_length)
        x = self.positions(self.tgt_embedding(tgt), offset=start)
        visible = causal_mask(start + tgt.size(1), tgt.device)[:, :, start:]
        return self.decoder(x, memory, visible, src_mask, cache)

    def project(self, hidden):
        return hidden @ self.output.weight.T

    def forward(self, src, tgt):
        mask = self.src_mask(src)
        memory = self.encode(src)
        hidden = self.decode(tgt, memory, mask)
        return self.project(hidden)

    def attention_maps(self, src, tgt):
        with attention_tap(self) as maps:
            self(src, tgt)
        return _by_layer(maps, self.config.depths)
### 05-model/shifted
def shifted(model, src, tgt):
    read = tgt.narrow(1, 0, tgt.shape[1] - 1)
    return model(src, read)
### 06-loss/label_smoothed_cross_entropy
def label_smoothed_cross_entropy(logits, targets, smoothing=0.1, pad_id=0, reduction="mean"):
    if logits.shape[:-1] != targets.shape:
        raise ValueError("logits and targets do not fit")
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must lie in [0, 1), but is {smoothing}")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be mean or sum, but is {reduction}")
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    log_p = torch.log_softmax(logits, dim=-1)
    real = targets != pad_id
    true = log_p.gather(-1, targets.masked_fill(~real, 0).unsqueeze(-1)).squeeze(-1)
    loss = -(1 - smoothing) * true - smoothing * log_p.mean(-1)
    total = loss.masked_fill(~real, 0.0).sum()
    return total if reduction == "sum" else total / max(int(real.sum()), 1)
### 06-loss/token_accuracy
def token_accuracy(logits, targets, pad_id=0):
    if logits.shape[:-1] != targets.shape:
        raise ValueError("logits and targets do not fit")
    right = n = 0
    for z, y in zip(logits.flatten(0, -2), targets.flatten()):
        if y != pad_id:
            n += 1
            right += int(z.max(-1).indices == y)
    return torch.tensor(right / n if n else 0.0)
### 06-loss/perplexity
def perplexity(loss):
    try:
        return math.e**loss
    except OverflowError:
        return float("inf")
### 06-loss/teacher_forced_loss
@singledispatch
def teacher_forced_loss(model, batch, smoothing=0.1):
    src, tgt = batch
    read, targets = tgt[:, :-1], tgt[:, 1:]
    pad_id = model.config.pad_id
    loss = label_smoothed_cross_entropy(model(src, read), targets, smoothing, pad_id, "sum")
    return loss, targets.ne(pad_id).sum()
### 06-loss/symmetric_kl
def symmetric_kl(logits_p, logits_q, targets, pad_id=0):
    log_p, log_q = F.log_softmax(logits_p, -1), F.log_softmax(logits_q, -1)
    one = F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)
    other = F.kl_div(log_p, log_q, reduction="none", log_target=True).sum(-1)
    return 0.5 * (one + other)[targets != pad_id].sum()
### 06-loss/r_drop_loss
def r_drop_loss(model, batch, smoothing=0.1, alpha=5.0):
    src, tgt = batch
    pad_id, targets = model.config.pad_id, tgt[:, 1:]
    one, other = model(src, tgt[:, :-1]), model(src, tgt[:, :-1])
    loss = sum(label_smoothed_cross_entropy(z, targets, smoothing, pad_id, "sum") for z in (one, other))
    loss = loss + alpha * symmetric_kl(one, other, targets, pad_id)
    return loss / 2, (targets != pad_id).sum()
### 07-training/moving_average
def moving_average(values, beta):
    averages = []
    for t in range(1, len(values) + 1):
        weights = [beta ** (t - 1 - i) for i in range(t)]
        averages.append(sum(w * x for w, x in zip(weights, values)) / sum(weights))
    return averages
### 07-training/adam_step
def adam_step(g, m, v, t, beta1=0.9, beta2=0.98, eps=1e-9):
    m += (1 - beta1) * (g - m)
    v += (1 - beta2) * (g * g - v)
    unbiased = (v / (1 - beta2**t)) ** 0.5
    return m / ((1 - beta1**t) * (unbiased + eps)), m, v
### 07-training/noam_rate
def noam_rate(step, d_model, warmup_steps, factor=1.0):
    check_size(step=step, d_model=d_model, warmup_steps=warmup_steps)
    check_number(factor=factor)
    if step < warmup_steps:
        rate = step / warmup_steps**1.5
    else:
        rate = 1 / math.sqrt(step)
    return factor * rate / math.sqrt(d_model)
### 07-training/cooldown
def cooldown(step, steps, fraction):
    check_size(step=step, steps=steps)
    check_type((int, float), fraction=fraction)
    if step > steps or not 0 <= fraction <= 1:
        raise ValueError("outside of the run")
    last = fraction * steps
    left = steps - step + 1
    return left / last if left < last else 1.0
### 07-training/train
def train(model, loss, batches, schedule):
    optimizer = adamw(model.parameters())
    step = 0
    for batch in batches:
        step += 1
        for group in optimizer.param_groups:
            group["lr"] = schedule(step)
        for p in model.parameters():
            p.grad = None
        summed, count = loss(model, batch)
        torch.div(summed, count).backward()
        length = torch.stack([p.grad.square().sum() for p in model.parameters()]).sum().sqrt()
        if length > 1:
            for p in model.parameters():
                p.grad.div_(length + 1e-6)
        optimizer.step()
### 07-training/evaluate_loss
def evaluate_loss(model, batches):
    pad_id = model.config.pad_id
    was = model.training
    model.eval()
    loss = right = n = 0
    with torch.no_grad():
        for src, tgt in batches:
            logits, targets = model(src, tgt[:, :-1]), tgt[:, 1:]
            real = targets != pad_id
            loss += F.cross_entropy(logits[real], targets[real], reduction="sum").item()
            right += int((logits.argmax(-1) == targets)[real].sum())
            n += int(real.sum())
    model.train(was)
    if n == 0:
        raise ValueError("batches hold no token")
    return {"accuracy": right / n, "loss": loss / n}
### 08-decoding/DecoderState
class DecoderState:
    def __init__(self, model, src, beam_size=1):
        rows = torch.arange(len(src)).repeat_interleave(beam_size)
        self.model, self.cache = model, KeyValueCache()
        self.memory, self.mask = model.encode(src)[rows], model.src_mask(src)[rows]

    def step(self, last):
        hidden = self.model.decode(last.unsqueeze(1), self.memory, src_mask=self.mask, cache=self.cache)
        return self.model.project(hidden).squeeze(1)

    def keep(self, rows):
        self.memory = self.memory.index_select(0, rows)
        self.mask = self.mask.index_select(0, rows)
        self.cache.reorder(rows)
### 08-decoding/greedy_search
@torch.no_grad()
def greedy_search(model, src, max_length):
    check_search(model, src, max_length)
    config = model.config
    with evaluating(model):
        state, last = decoder_state(model, src), torch.full((len(src),), config.bos_id)
        done, columns = torch.zeros(len(src), dtype=torch.bool), []
        for _ in range(max_length):
            logits = state.step(last)
            if logits.isnan().any():
                raise ValueError("the model gives NaN")
            last = torch.where(done, torch.full_like(last, config.pad_id), logits.argmax(-1))
            columns.append(last)
            done = done | (last == config.eos_id)
            if done.all():
                break
    return torch.stack(columns, dim=1)
### 08-decoding/keep_best
def keep_best(scores, tokens, beam_size):
    order = scores.argsort(dim=1, descending=True)[:, :beam_size]
    rows = torch.arange(len(scores))[:, None]
    return BeamResult(tokens[rows, order], scores[rows, order])
### 08-decoding/best_continuations
def best_continuations(alive, log_probs):
    B, K, V = log_probs.shape
    total = (alive.scores.unsqueeze(-1) + log_probs).reshape(B, K * V)
    best = total.sort(dim=1, descending=True)
    scores, index = best.values[:, : 2 * K], best.indices[:, : 2 * K]
    origin = torch.div(index, V, rounding_mode="floor")
    tokens = torch.stack([alive.tokens[b, origin[b]] for b in range(B)])
    return BeamResult(torch.cat([tokens, (index - origin * V).unsqueeze(-1)], -1), scores), origin
### 08-decoding/merge_hypotheses
def merge_hypotheses(kept, new, pad_id):
    B, K, L = kept.tokens.shape
    room = new.tokens.new_full((B, K + new.tokens.size(1), new.tokens.size(2)), pad_id)
    room[:, :K, :L], room[:, K:] = kept.tokens, new.tokens
    return keep_best(torch.cat([kept.scores, new.scores], 1), room, K)
### 08-decoding/length_norm
def length_norm(length, alpha):
    return (5 + length) ** alpha / 6**alpha
### 09-toy-task/reverse_and_mark
def reverse_and_mark(digits, mark):
    check_size(mark=mark)
    check_ids("digits", digits, mark)
    rows = []
    for row in digits.tolist():
        seen, out = {}, []
        for d in row:
            seen[d] = seen.get(d, 0) + 1
            out.append(mark if seen[d] % 2 == 0 else d)
        rows.append(out[::-1])
    return torch.tensor(rows)
### 09-toy-task/reversal_batch
def reversal_batch(batch_size, length, n_digits=10, generator=None):
    check_size(batch_size=batch_size, length=length, n_digits=n_digits)
    check_type((torch.Generator, type(None)), generator=generator)
    inputs = torch.randint(0, n_digits, size=(batch_size, length), generator=generator)
    start = torch.full((batch_size, 1), n_digits + 1)
    return inputs, torch.cat([start, reverse_and_mark(inputs, n_digits)], dim=1)
### 09-toy-task/exact_match
def exact_match(model, n_sequences=10_000, length=10, seed=10_000):
    check_type(nn.Module, model=model)
    check_size(n_sequences=n_sequences, length=length)
    check_size(minimum=0, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    inputs, outputs = reversal_batch(n_sequences, length, model.config.bos_id - 1, draw)
    written = torch.cat([greedy_search(model, some, length) for some in inputs.split(500)])
    tokens = sum(int(a == b) for a, b in zip(written.flatten().tolist(), outputs[:, 1:].flatten().tolist()))
    whole = sum(int(torch.equal(a, b)) for a, b in zip(written, outputs[:, 1:]))
    return {"tokens": tokens / written.numel(), "sequences": whole / n_sequences}
### 09-toy-task/faultless
@torch.no_grad()
def faultless(model, inputs):
    outputs = _outputs(inputs, model.config.bos_id - 1)
    read, wanted = outputs[:, :-1], outputs[:, 1:]
    return (model(inputs, read).max(-1).indices != wanted).sum(1) == 0
### 09-toy-task/crowd
def crowd(digits, generator):
    rows = [row.clone() for row in digits]
    for row in rows:
        for place in range(1, len(row)):
            row[place] = row[int(torch.rand((), generator=generator) * (place + 1))]
    return torch.stack(rows)
### 10-speed/loss_in_chunks
def loss_in_chunks(X, E, targets, size=3):
    total, d_X, d_E = 0.0, torch.zeros_like(X), torch.zeros_like(E)
    for start in range(0, len(X), size):
        x = X[start : start + size].detach().requires_grad_()
        e = E.detach().requires_grad_()
        loss = F.cross_entropy(x @ e.T, targets[start : start + size], reduction="sum")
        g_x, g_e = torch.autograd.grad(loss, (x, e))
        total, d_E = total + loss.detach(), d_E + g_e
        d_X[start : start + size] = g_x
    return total, d_X, d_E
### 12-text/merge
def merge(pieces, pair):
    merged, i = [], 0
    while i < len(pieces):
        if tuple(pieces[i : i + 2]) == tuple(pair):
            merged.append(pieces[i] + pieces[i + 1])
            i += 2
        else:
            merged.append(pieces[i])
            i += 1
    return merged
### 12-text/learn_merges
def learn_merges(counts, n_merges):
    words = {word: ["▁", *word] for word in counts}
    age = {s: n for n, s in enumerate(sorted(set("▁" + "".join(counts))))}
    for _ in range(n_merges):
        pairs = {}
        for word, parts in words.items():
            for left, right in zip(parts[:-1], parts[1:]):
                pairs[left, right] = pairs.get((left, right), 0) + counts[word]
        best = sorted(pairs, key=lambda p: (age[p[0]], age[p[1]]))
        best = max(best, key=pairs.get)  # the first of the largest
        yield best, pairs[best]
        age.setdefault(best[0] + best[1], len(age))
        for word in words:
            words[word] = merge(words[word], best)
### 12-text/pad
def pad(sequences, pad_id=PAD_ID):
    if not sequences:
        raise ValueError("sequences must hold at least one sequence")
    longest = max(len(sequence) for sequence in sequences)
    return torch.tensor([[*s, *[pad_id] * (longest - len(s))] for s in sequences], dtype=torch.long)
### 12-text/batch_cuts
def batch_cuts(lengths, max_tokens):
    groups = []
    for i, length in enumerate(lengths):
        if groups and max(lengths[j] for j in [*groups[-1], i]) * (len(groups[-1]) + 1) <= max_tokens:
            groups[-1].append(i)
        else:
            groups.append([i])
    return [slice(group[0], group[-1] + 1) for group in groups]
### 12-text/padding_waste
def padding_waste(batches):
    shares = [(ids.eq(PAD_ID).sum().item(), ids.numel()) for batch in batches for ids in batch]
    if not shares:
        raise ValueError("no batch")
    return sum(n for n, _ in shares) / sum(n for _, n in shares)
### 13-translation/ngrams
def ngrams(words, n):
    return Counter(zip(*(words[i:] for i in range(n))))
### 13-translation/bleu_by_hand
def bleu_by_hand(hypotheses, references):
    above, below, c, r = [0] * 4, [0] * 4, 0, 0
    for hypothesis, reference in zip(hypotheses, references):
        ours, theirs = hypothesis.split(), reference.split()
        c, r = c + len(ours), r + len(theirs)
        for n in range(4):
            there = ngrams(theirs, n + 1)
            for gram, count in ngrams(ours, n + 1).items():
                above[n] += min(count, there[gram])
                below[n] += count
    mean = math.prod(a / b for a, b in zip(above, below)) ** 0.25
    return 100 * mean * (1 if c >= r else math.exp(1 - r / c))
### 14-looking-inside/ibm_model_1
def ibm_model_1(src, tgt, vocab_size, rounds=5, pad_id=0):
    table = torch.ones(vocab_size, vocab_size) / vocab_size
    for _ in range(rounds):
        counts = torch.zeros(vocab_size, vocab_size)
        for source, target, links in zip(src, tgt, ibm_alignment(table, src, tgt, pad_id)):
            for t, row in zip(target, links):
                for s, link in zip(source, row):
                    counts[s, t] += link
        sums = counts.sum(1, keepdim=True)
        table = torch.where(sums > 0, counts / sums, torch.zeros(()))
    return table
### 14-looking-inside/share_on
def share_on(weights, places):
    queries = places.sum(-1) > 0
    return torch.where(places, weights, torch.zeros(())).sum() / queries.sum()
### 14-looking-inside/linear_probe
def linear_probe(x, labels, ridge=10.0):
    y = torch.where(labels, 1.0, -1.0).to(x.dtype)
    mean = x.mean(0)
    wide = torch.cat([x - mean, math.sqrt(ridge) * torch.eye(x.size(1), dtype=x.dtype)])
    weights = torch.linalg.pinv(wide) @ torch.cat([y - y.mean(), y.new_zeros(x.size(1))])
    return weights, y.mean() - (mean * weights).sum()
### 15-since-2017/RMSNorm
class RMSNorm(nn.Module):
    def __init__(self, d_model, eps=1e-6):
        super().__init__()
        self.gain, self.eps = nn.Parameter(torch.ones(d_model)), eps

    def forward(self, x):
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        root = (torch.linalg.vector_norm(wide, dim=-1, keepdim=True) ** 2 / x.shape[-1] + self.eps) ** 0.5
        return (wide / root * self.gain).to(x.dtype)
### 15-since-2017/GatedFeedForward
class GatedFeedForward(nn.Module):
    def __init__(self, d_model, d_ff, activation="silu"):
        super().__init__()
        self.gate_proj = nn.Linear(d_model, d_ff, bias=False)
        self.up_proj = nn.Linear(d_model, d_ff, bias=False)
        self.down_proj = nn.Linear(d_ff, d_model, bias=False)
        self.act = GATES[activation]

    def forward(self, x):
        return self.down_proj(self.up_proj(x) * self.act(self.gate_proj(x)))
### 15-since-2017/rotary_table
def rotary_table(length, d_k, base=10_000.0, offset=0, stretch=None):
    speeds = torch.tensor([1 / base ** (2 * i / d_k) for i in range(d_k // 2)], dtype=torch.float64)
    speeds = speeds if stretch is None else stretch(speeds)
    angles = torch.stack([(offset + p) * speeds for p in range(length)])
    return torch.stack((torch.cos(angles), torch.sin(angles)), dim=0)
### 15-since-2017/rotate
def rotate(x, table, interleaved=False):
    cos, sin = table
    half = x.shape[-1] // 2
    out = torch.empty_like(x)
    one, other = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(half), slice(half, None))
    a, b = x[..., one], x[..., other]
    out[..., one], out[..., other] = a * cos - b * sin, b * cos + a * sin
    return out
### 15-since-2017/sliding_mask
def sliding_mask(length, offset=0, window=None, device=None):
    query = torch.arange(offset, offset + length, device=device)[:, None]
    key = torch.arange(offset + length, device=device)
    seen = key <= query
    if window is not None:
        seen = seen & (query - key < window)
    return seen[None, None]
### 15-since-2017/accept
def accept(proposed, q, p, draw):
    kept = []
    for token, small, large in zip(proposed, q, p):
        ratio = min(1.0, float(large[token]) / float(small[token]))
        if draw(torch.tensor([1 - ratio, ratio], dtype=p.dtype)) == 0:
            rest = torch.relu(large - small)
            return kept + [draw(rest / rest.sum())]
        kept.append(token)
    return kept + [draw(p[len(proposed)])]
### 16-clinic/influence
@torch.no_grad()
def influence(call, ids, other):
    whole = call(ids)
    T, rows = ids.size(1), torch.zeros(ids.size(1), ids.size(1), dtype=whole.dtype)
    for u in range(T):
        moved = (call(torch.where(torch.arange(T) == u, other, ids)) - whole).abs()
        for t in range(T):
            rows[u, t] = moved[:, t].max() / whole.abs().max()
    return rows
### 11-long-runs/MovingAverage
class MovingAverage:
    def __init__(self, model, decay):
        self.parameters, self.decay, self.n_updates = list(model.parameters()), decay, 0
        self.weights = [p.detach() * 1 for p in self.parameters]

    @torch.no_grad()
    def update(self):
        self.n_updates += 1
        keep = min(self.decay, (self.n_updates + 1) / (self.n_updates + 10))
        for mine, p in zip(self.weights, self.parameters):
            mine.mul_(keep).add_(p, alpha=1 - keep)

    def applied(self):
        return _exchanged(self.parameters, self.weights)

    def state_dict(self):
        return {"n_updates": self.n_updates, "weights": self.weights}

    def load_state_dict(self, state):
        check_size(minimum=0, n_updates=state["n_updates"])
        if [x.shape for x in state["weights"]] != [x.shape for x in self.weights]:
            raise ValueError("the averaged weights are another model's")
        self.n_updates = state["n_updates"]
        for average, weight in zip(self.weights, state["weights"]):
            average.copy_(weight)
"""

# The code of each piece by its key.
OTHER = dict(re.findall(r"^### (\S+)\n(.*?)(?=^### |\Z)", TEXT, re.MULTILINE | re.DOTALL))

# The same under the book's names for parameters, without which a chapter goes on with the book's piece.
_BOOKS = {
    "q_proj": "w_q", "k_proj": "w_k", "v_proj": "w_v", "out_proj": "w_o", "fc_in": "w_1", "fc_out": "w_2",
    "gate_proj": "w_gate", "up_proj": "w_1", "down_proj": "w_2", "gain": "weight",
    "pe": "table", "self.shift": "self.bias",
    "self.ln": "self.norm", "self.blocks": "self.layers", "self.top": "self.norm",
    "self.attn": "self.self_attention", "self.cross": "self.cross_attention", "self.ffn": "self.feed_forward",
    "self.res1": "self.self_residual", "self.res2": "self.cross_residual", "self.res3": "self.feed_residual",
}  # fmt: skip
_NAMES = re.compile(rf"\b({'|'.join(map(re.escape, _BOOKS))})\b")
NAMED = {key: _NAMES.sub(lambda found: _BOOKS[found[0]], code) for key, code in OTHER.items()}
