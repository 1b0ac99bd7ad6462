// Sentences into the tokens of Chapter 12, and back.
"use strict";
{
  const SPACE = "▁"; // stands for the space in front of a word
  const ENDING = "(?:s|re|ve|m|ll|d)(?![\\p{L}\\p{N}_])"; // of she's, we're and their like

  // Lower case, blanks around punctuation: what `transformer.language.corpora.tokenize` makes of simple text.
  const WORDS = new RegExp(`n['’]t(?![\\p{L}\\p{N}_])|['’]${ENDING}|[\\p{L}\\p{N}_]+(?=n['’]t(?![\\p{L}\\p{N}_]))`
    + `|[\\p{L}\\p{N}_]+(?:(?:-|['’](?!${ENDING}))[\\p{L}\\p{N}_]+)*|[^\\p{L}\\p{N}_\\s]`, "gu");
  const tokenize = (text) => (text.normalize("NFC").toLowerCase().match(WORDS) ?? []).join(" ").replaceAll("’", "'");

  class Vocabulary {
    constructor({ pieces, merges }) {
      this.pieces = pieces;
      this.numbers = new Map(pieces.map((piece, number) => [piece, number]));
      this.ranks = new Map(merges.map((merge, rank) => [merge.join(" "), rank]));
    }

    // Joins, again and again, the pair of neighbors that was learned first.
    cut(word) {
      const parts = [...word];
      for (;;) {
        const ranks = parts.slice(1).map((part, i) => this.ranks.get(`${parts[i]} ${part}`) ?? Infinity);
        const best = Math.min(Infinity, ...ranks);
        if (best === Infinity) return parts;
        for (let i = 0; i < parts.length - 1; i++) {
          if (this.ranks.get(`${parts[i]} ${parts[i + 1]}`) === best) parts.splice(i, 2, parts[i] + parts[i + 1]);
        }
      }
    }

    // Unknown characters become token 1.
    encode(text) {
      const words = text.normalize("NFC").split(/\s+/).filter(Boolean);
      return words.flatMap((word) => this.cut(SPACE + word)).map((piece) => this.numbers.get(piece) ?? 1);
    }

    // Whether a token begins a word.
    begins = (id) => this.pieces[id].startsWith(SPACE);

    // A token by itself; a hyphen stands for the earlier part of its word.
    shown(id) {
      const piece = this.pieces[id];
      return { "<pad>": "padding", "<unk>": "unknown", "<s>": "start", "</s>": "end" }[piece] ?? (this.begins(id) ? piece.slice(1) : `-${piece}`);
    }

    // The words of some tokens, as {text, places}: which of the tokens make up each of them.
    words(ids) {
      const words = [];
      ids.forEach((id, place) => {
        const piece = this.pieces[id];
        if (this.begins(id) || piece === "</s>" || !words.length) words.push({ text: "", places: [] });
        words.at(-1).text += piece.replace(SPACE, "");
        words.at(-1).places.push(place);
      });
      return words;
    }
  }

  Object.assign(live, { Vocabulary, tokenize });
}
