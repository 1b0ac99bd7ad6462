// Chapter 9's task, learned while one watches, on four digits.
"use strict";
live.mount("reversing", () => live.trial({ task: "reverse, with X", digits: 4, peak: 0.003, warmup: 100 }, 600, false));
