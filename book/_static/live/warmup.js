// A run whose rate and warm-up one chooses, for Chapter 7.
"use strict";
live.mount("warmup", () => live.trial({ task: "reverse", digits: 5, peak: 0.003, warmup: 100 }, 250, true));
