// Questions before their answers: what a reader guesses is kept in the browser, and what a cell found is veiled until then.
// The pages hold questions, figures and lists; without this script all of them are plain text, and no output is hidden.
"use strict";

(() => {
  const KEY = `predictions:${location.pathname.split("/").pop()}`;
  const CLOSE = { share: 0.1, factor: 2 }; // of the scale; of a logarithmic one

  // The reader's guesses, by the name of the question; null is a question whose answer was shown without one.
  let guesses = {};
  try {
    guesses = Object(JSON.parse(localStorage.getItem(KEY)));
  } catch { /* refused, or not ours: then the page forgets when it is closed */ }

  function keep() {
    try {
      if (Object.keys(guesses).length) localStorage.setItem(KEY, JSON.stringify(guesses));
      else localStorage.removeItem(KEY);
    } catch { /* refused */ }
  }

  const withUnit = (number, unit) => `${number}${unit && unit !== "%" ? " " : ""}${unit}`;

  function shown(value, known) {
    if (known.log) {
      const few = value.toExponential(1).replace(/([+-])(\d)$/, "$10$2");
      if (value >= 1e9 || value < 1e-3) return withUnit(few, known.unit);
      return withUnit(Number(value.toPrecision(2)).toLocaleString("en-US", { maximumFractionDigits: 4 }), known.unit);
    }
    const digits = (String(known.step).split(".")[1] ?? "").length;
    return withUnit(value.toFixed(digits).replace("-", "−"), known.unit);
  }

  function distance(guess, known) {
    if (known.log) {
      const factor = Math.max(guess / known.value, known.value / guess);
      if (factor < 1.05) return "as you did";
      const said = factor < 1e4 ? Number(factor.toPrecision(2)) : factor.toExponential(0).replace("+", "");
      return `so you were off by a factor of ${said}`;
    }
    const apart = Number(Math.abs(guess - known.value).toPrecision(3));
    if (!apart) return "as you did";
    return `so you were off by ${known.unit === "%" ? `${apart} points` : withUnit(apart, known.unit)}`;
  }

  function isClose(guess, known) {
    if ("answer" in known) return guess === known.answer;
    if (known.log) return Math.max(guess / known.value, known.value / guess) <= CLOSE.factor;
    return Math.abs(guess - known.value) <= CLOSE.share * (known.high - known.low);
  }

  class Question {
    constructor(box, changed) {
      this.box = box;
      this.known = JSON.parse(box.dataset.question);
      this.outputs = [...document.getElementsByClassName(`answers-${this.known.name}`)];
      this.range = box.querySelector("input[type=range]");
      this.radios = [...box.querySelectorAll("input[type=radio]")];
      this.result = box.querySelector(".predict-result");
      this.changed = changed;
      this.guessButton = box.querySelector(".guess");
      this.guessButton.addEventListener("click", () => this.answer(this.chosen, true));
      box.querySelector(".show").addEventListener("click", () => this.answer(null, true));
      this.range?.addEventListener("input", () => this.say());
      this.radios.forEach(radio => radio.addEventListener("change", () => this.say()));
      this.reset();
      const guess = guesses[this.known.name];
      if (guess !== undefined) this.answer(this.allows(guess) ? guess : null);
    }

    get answered() { return this.known.name in guesses; }

    // What the reader has chosen and not yet said.
    get chosen() {
      if (!this.range) return this.radios.findIndex(radio => radio.checked);
      const { log, low, high } = this.known;
      return log ? low * (high / low) ** (this.range.value / this.range.max) : Number(this.range.value);
    }

    // Whether a stored guess is one that the question still takes.
    allows(guess) {
      if (typeof guess !== "number") return false;
      return this.range ? guess >= this.known.low && guess <= this.known.high * (1 + 1e-9) : guess in this.radios;
    }

    share(value) {
      const { log, low, high } = this.known;
      return log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    }

    say() {
      if (this.range) {
        const text = shown(this.chosen, this.known);
        this.box.querySelector(".predict-value").textContent = text;
        this.range.setAttribute("aria-valuetext", text);
      } else {
        this.guessButton.disabled = this.chosen < 0;
      }
    }

    reset() {
      this.box.classList.remove("answered");
      this.box.querySelector(".predict-mark")?.remove();
      this.result.textContent = "";
      for (const input of [this.range, ...this.radios].filter(Boolean)) {
        input.disabled = false;
        if (input === this.range) input.value = input.defaultValue;
        else input.checked = false;
        input.closest("label")?.classList.remove("right", "wrong");
      }
      this.say();
      this.veil();
    }

    answer(guess, asked = false) {
      guesses[this.known.name] = guess;
      this.box.classList.add("answered");
      if (this.range) this.mark(guess);
      else this.judge(guess);
      this.result.textContent = this.sentence(guess);
      this.unveil();
      if (!asked) return;
      keep();
      this.result.focus({ preventScroll: true }); // the button that was pressed is gone
      this.changed();
    }

    mark(guess) {
      if (guess !== null) this.range.value = this.known.log ? this.share(guess) * this.range.max : guess;
      this.say();
      this.range.disabled = true;
      const mark = Object.assign(document.createElement("span"), { className: "predict-mark", ariaHidden: "true" });
      mark.style.setProperty("--share", Math.min(1, Math.max(0, this.share(this.known.value))));
      this.box.querySelector(".predict-track").append(mark);
    }

    judge(guess) {
      this.radios.forEach((radio, place) => {
        radio.checked = place === guess;
        radio.disabled = true;
        if (place === this.known.answer) radio.closest("label").classList.add("right");
        else if (place === guess) radio.closest("label").classList.add("wrong");
      });
    }

    sentence(guess) {
      const { known } = this;
      if (this.range) {
        const found = `The cell found ${known.found}`;
        return guess === null ? `${found}.` : `You guessed ${shown(guess, known)}. ${found}, ${distance(guess, known)}.`;
      }
      const said = guess === null ? "The answer is" : guess === known.answer ? "Yes, it is" : "No, it is";
      return `${said} ${known.found}. The cell prints ${known.figure}.`;
    }

    // What answers is not shown; one line says so where it will stand.
    veil() {
      const [first] = this.outputs;
      if (!first || first.classList.contains("veiled")) return;
      const veil = Object.assign(document.createElement("p"), { className: "predict-veil" });
      const show = Object.assign(document.createElement("button"), { type: "button", textContent: "Show me" });
      show.addEventListener("click", () => this.answer(null, true));
      const back = Object.assign(document.createElement("a"), { href: `#${this.box.id}`, textContent: "guess first" });
      veil.append("Veiled: ", back, " or ", show);
      first.before(veil);
      for (const output of this.outputs) output.classList.add("veiled");
    }

    unveil() {
      const [first] = this.outputs;
      if (first?.previousElementSibling?.matches(".predict-veil")) first.previousElementSibling.remove();
      for (const output of this.outputs) output.classList.remove("veiled");
    }
  }

  function summarize(box, questions) {
    const guessed = questions.filter(({ known }) => (guesses[known.name] ?? null) !== null);
    const close = guessed.filter(({ known }) => isClose(guesses[known.name], known));
    const total = questions.length;
    const [status] = box.getElementsByTagName("p");
    const were = close.length === 1 ? "One was" : `${close.length || "None"} ${close.length ? "were" : "was"}`;
    status.textContent = guessed.length
      ? `You have made ${guessed.length} of this chapter’s ${total} predictions. ${were} close: the right choice, within a tenth of the scale, or within a factor of two where it is logarithmic.`
      : `This chapter asks for ${total} prediction${total > 1 ? "s" : ""}. You have made none yet.`;
    for (const { known, radios } of questions) {
      const guess = guesses[known.name];
      const item = box.querySelector(`li[data-name="${known.name}"]`);
      const yours = typeof guess !== "number" ? "" : `You said ${radios[guess]?.parentElement.textContent.trim() ?? shown(guess, known)}. `;
      item.lastElementChild.textContent = guess === undefined ? "" : `${yours}Found: ${known.found}.`;
      item.classList.toggle("close", typeof guess === "number" && isClose(guess, known));
    }
    box.querySelector(".forget").disabled = !Object.keys(guesses).length;
  }

  document.addEventListener("DOMContentLoaded", () => {
    const box = document.querySelector(".predict-summary");
    const questions = [];
    const changed = () => summarize(box, questions);
    for (const one of document.querySelectorAll(".predict")) questions.push(new Question(one, changed));
    box.querySelector(".forget").addEventListener("click", () => {
      guesses = {};
      keep();
      questions.forEach(question => question.reset());
      changed();
      const [status] = box.getElementsByTagName("p");
      status.tabIndex = -1;
      status.focus({ preventScroll: true });
    });
    changed();
  });
})();
