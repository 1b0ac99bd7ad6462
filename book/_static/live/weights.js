// Reads what book/_ext/live.py wrote: a model's configuration, and its weights in float16 as base64.
"use strict";
{
  const POWERS = Float64Array.from({ length: 32 }, (_, exponent) => 2 ** (Math.max(exponent, 1) - 25));

  function bytes_of(base64) {
    const text = atob(base64);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
    return bytes;
  }

  const floats_of = (base64) => new Float32Array(bytes_of(base64).buffer);

  // Sign, five bits of exponent, ten of fraction, which has a leading one unless the exponent is 0.
  function half_floats_of(base64) {
    const halves = new Uint16Array(bytes_of(base64).buffer);
    const numbers = new Float32Array(halves.length);
    for (let i = 0; i < halves.length; i++) {
      const exponent = (halves[i] >> 10) & 31;
      const fraction = (halves[i] & 1023) + (exponent ? 1024 : 0);
      numbers[i] = (halves[i] & 0x8000 ? -fraction : fraction) * POWERS[exponent];
    }
    return numbers;
  }

  // record.sizes names the tensors in the order in which they lie in record.weights.
  function load_model(record) {
    const numbers = half_floats_of(record.weights);
    const state = {};
    let start = 0;
    for (const [name, size] of record.sizes) state[name] = numbers.subarray(start, (start += size));
    return new live[record.kind](record.config, state);
  }

  // The largest difference between the model's logits and those that PyTorch computed when the book was built.
  function difference(model, { src, tgt, logits }) {
    const wanted = floats_of(logits);
    const found = model.forward(src, tgt).flatMap((row) => [...row]);
    return found.reduce((most, value, i) => Math.max(most, Math.abs(value - wanted[i])), 0);
  }

  Object.assign(live, { load_model, difference });
}
