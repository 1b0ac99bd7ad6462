"""Recipes: settings by name, in files, and what training makes of them."""

import json
import re
import unicodedata
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import PAIRS, corpus

import transformer.commands.data
import transformer.commands.main
import transformer.commands.recipes
from transformer import (
    RECIPES,
    Preparation,
    Recipe,
    TokenBatches,
    Trainer,
    TrainingConfig,
    Transformer,
    Translator,
    Vocabulary,
    corpus_scores,
    encode_pairs,
    evaluate_loss,
    r_drop_loss,
    recipe_for,
    teacher_forced_loss,
    train_translator,
)
from transformer.commands.data import ParallelData, Translations, held_out
from transformer.commands.recipes import (
    Schedule,
    Stacks,
    changed,
    own_recipe,
    read_recipe,
    settings,
    train_recipe,
)
from transformer.exchange.translators import load_translator
from transformer.files import write_record
from transformer.language.batches import BPEDropout
from transformer.language.corpora import AS_IT_IS, CORPORA, PREPARATIONS, CorpusError, Pair
from transformer.language.translator import Search, evaluate_translator, tune_search
from transformer.runs.distributed import process_group
from transformer.runs.loop import load_checkpoint
from transformer.speed.fast import FastTransformer
from transformer.toy import reverse_and_mark
from transformer.training import record_path
from transformer.weights import set_weights

TOY = changed(
    RECIPES["toy"], steps=6, batch_size=4, length=5, warmup_steps=3, evaluate_every=3, cooldown=0.0
)  # fmt: skip
TINY = Recipe(
    Translations("ours", vocab_size=90),
    Stacks(d_model=16, n_heads=2, n_layers=1, d_ff=24, norm_first=True),
    Schedule(warmup_steps=200, peak_rate=2e-3),
    TrainingConfig(6, evaluate_every=3),
)


def ours(corpus, split):
    return PAIRS if split == "train" else PAIRS[:2]


@pytest.fixture(autouse=True)
def corpus_of_four(monkeypatch):
    """Recipes of a corpus read this one."""
    monkeypatch.setattr(transformer.commands.data, "load_corpus", ours)


# Settings


def test_changes_reach_the_part_that_they_belong_to():
    recipe = changed(TINY, steps=12, dropout=0.25, corpus="ted", r_drop=5.0, cooldown=0.5)
    assert (recipe.training.steps, recipe.model.dropout, recipe.data.corpus) == (12, 0.25, "ted")
    assert (recipe.loss.r_drop, recipe.schedule.cooldown) == (5.0, 0.5)
    assert changed(recipe, **settings(TINY)) == TINY and changed(TINY) == TINY


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_every_setting_has_a_name_of_its_own(recipe):
    names = [field.name for part in fields(recipe) for field in fields(getattr(recipe, part.name))]
    assert len(set(names)) == len(names) == len(settings(recipe))


@pytest.mark.parametrize(
    "change", [{"d_model": 17}, {"n_layers": (1, 2, 3)}, {"warmup_steps": 0}, {"seed": -1}]
)
def test_what_no_run_can_do_is_refused_at_once(change):
    with pytest.raises(ValueError, match="n_heads must divide d_model|" + next(iter(change))):
        changed(TINY, **change)


def test_the_data_of_the_other_kind_are_refused():
    with pytest.raises(TypeError, match="data must be a Translations, not Reversals"):
        train_translator(TOY)


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("commands.recipes", lambda: train_translator(TINY)),
        ("language.translator", lambda: Translator.load("phrases")),
        ("language.translator", lambda: load_translator("phrases")),
        ("runs.distributed", lambda: process_group().__enter__()),
    ],
)
def test_what_trains_or_translates_does_so_on_the_best_device(monkeypatch, module, call):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(f"transformer.{module}.best_device", lambda: "nowhere")
    with pytest.raises(ValueError, match="device 'nowhere' cannot be used here"):
        call()


def test_one_rule_says_which_device_is_best():
    package = Path(transformer.__file__).parent
    asked = [path.name for path in package.rglob("*.py") if "cuda.is_available" in path.read_text("utf8")]
    assert asked == ["training.py"]


# In files


@pytest.mark.parametrize(
    "recipe", [*RECIPES.values(), changed(TINY, n_layers=(3, 1))], ids=[*RECIPES, "deep"]
)
def test_a_recipe_comes_back_from_its_file(recipe, tmp_path):
    write_record(tmp_path / "config.json", asdict(recipe))
    assert read_recipe(tmp_path / "config.json") == recipe
    write_record(tmp_path / "record.json", {"date": "today", "recipe": asdict(recipe)})
    assert read_recipe(tmp_path / "record.json") == recipe


WHOLE = asdict(TINY)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (WHOLE | {"data": {"corpus": "ted", "vocab_size": 300, "warmth": 3}}, "argument 'warmth'"),
        (WHOLE | {"data": {"corpus": "ted", "vocab_size": "300"}}, "vocab_size must be an int, not str"),
        (WHOLE | {"data": {"corpus": "ted"}}, "'vocab_size'"),
        (WHOLE | {"data": {"batch_size": 5, "corpsu": "ted"}}, "argument 'corpsu'"),
        (WHOLE | {"training": [1]}, "must be a mapping, not list"),
        (WHOLE | {"weather": {}}, "argument 'weather'"),
        ({name: part for name, part in WHOLE.items() if name != "training"}, "'training'"),
        ({"recipe": [1]}, "recipe must be a dict"),
    ],
)
def test_what_is_no_recipe_is_refused_by_name(values, message, tmp_path):
    write_record(tmp_path / "some.json", values)
    with pytest.raises(ValueError, match=re.escape(message)) as refusal:
        read_recipe(tmp_path / "some.json")
    assert "some.json holds no recipe" in str(refusal.value)


# The toy


@pytest.mark.slow
def test_the_seed_of_a_recipe_decides_weights_and_data():
    def trained(seed, before):
        torch.manual_seed(before)  # which must not matter
        _, trainer = train_recipe(changed(TOY, steps=1, evaluate_every=1, seed=seed))
        return trainer.model.src_embedding.weight, next(iter(trainer.stream.batches(0)))[0]

    (weights, inputs), (same, again) = trained(3, before=0), trained(3, before=1)
    (others, unlike) = trained(4, before=0)
    assert same.equal(weights) and again.equal(inputs)
    assert not others.equal(weights) and not unlike.equal(inputs)


def test_run_is_evaluated_on_a_stream_of_its_own(monkeypatch):
    seen = []

    def search(model, src, length):
        seen.append(src)
        return reverse_and_mark(src, 10)

    monkeypatch.setattr(transformer.toy, "greedy_search", search)
    _, trainer = train_recipe(changed(TOY, steps=1, evaluate_every=1))
    inputs, _ = next(iter(trainer.stream.batches(0)))
    assert seen[0].shape == (1000, 5) and not seen[0][: len(inputs)].equal(inputs)


# Translators


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "toy"])
def test_recipes_reach_their_peak_at_the_end_of_warm_up(name):
    recipe = RECIPES[name]
    schedule, steps = recipe.schedule, recipe.training.steps
    rates = [recipe.rate(step) for step in range(1, steps + 1)]
    assert max(rates) == pytest.approx(schedule.peak_rate)
    assert rates.index(max(rates)) + 1 == schedule.warmup_steps
    uncooled = changed(recipe, cooldown=0.0).rate(steps)
    falling = schedule.cooldown * steps
    assert rates[-1] == pytest.approx(uncooled / falling if falling else uncooled)


def test_training_follows_its_recipe(monkeypatch):
    dev = [Pair("a casa não é velha .", "the house is not old .")]
    recipe = changed(TINY, steps=1, seed=5, smoothing=0.3, max_tokens=20)
    monkeypatch.setattr(
        transformer.commands.data, "load_corpus", lambda corpus, split: PAIRS if split == "train" else dev
    )
    translator, trainer = train_translator(recipe)
    model, vocabulary = translator.model, translator.vocabulary
    assert not model.training
    # Both languages are in the vocabulary, and nothing but the training split.
    learned = Vocabulary.train((text for pair in PAIRS for text in pair), recipe.data.vocab_size)
    assert vocabulary.tokenizer.to_str() == learned.tokenizer.to_str()
    batches = list(trainer.stream.batches(0))
    wanted = list(TokenBatches(encode_pairs(PAIRS, vocabulary), 20, seed=5)(0))
    assert all(a.equal(b) for one, two in zip(batches, wanted, strict=True) for a, b in zip(one, two))
    smoothed, _ = teacher_forced_loss(model, batches[0], smoothing=0.3)
    assert trainer.loss(model, batches[0])[0].equal(smoothed)
    held_out = TokenBatches(encode_pairs(dev, vocabulary), 20)(0)
    assert trainer.scores.evaluate(model) == evaluate_loss(model, held_out)


def test_the_loss_is_the_one_that_the_recipe_asks_for():
    recipe = changed(TINY, steps=1, smoothing=0.3, dropout=0.2, r_drop=2.0)
    _, trainer = train_translator(recipe)
    batch = next(iter(trainer.stream.batches(0)))
    trainer.model.train()
    losses = []
    for loss in (trainer.loss, partial(r_drop_loss, smoothing=0.3, alpha=2.0)):
        torch.manual_seed(0)
        losses.append(loss(trainer.model, batch)[0])
    assert losses[0].equal(losses[1])


@pytest.mark.slow
def test_subwords_are_cut_anew_in_every_epoch_where_the_recipe_says_so():
    recipe = changed(TINY, steps=1, seed=5, max_tokens=60, bpe_dropout=0.3)
    translator, trainer = train_translator(recipe)
    cut = BPEDropout(PAIRS, translator.vocabulary, 0.3, 5, 60)
    for epoch in (0, 3):
        given = [x.tolist() for batch in trainer.stream.batches(epoch) for x in batch]
        assert given == [x.tolist() for batch in TokenBatches(cut(epoch), 60, 5)(epoch) for x in batch]
    few = train_translator(changed(recipe, n_shapes=3))[1].stream.batches
    shapes = {source.shape for epoch in range(3) for source, _ in few(epoch)}
    assert len(shapes) == 3 and max(length for _, length in shapes) == 60  # with room for longer cuts
    usual = TokenBatches(encode_pairs(PAIRS, translator.vocabulary), 60, seed=5)(0)
    assert sum(batch[0].numel() for batch in trainer.stream.batches(0)) > sum(
        batch[0].numel() for batch in usual
    )


def weights_equal(model, other) -> bool:
    weights = other.state_dict()
    return all(weights[name].equal(x) for name, x in model.state_dict().items())


@pytest.mark.slow
def test_averaged_weights_are_what_is_kept():
    translator, trainer = train_translator(changed(TINY, average=0.5))
    assert translator.model is not trainer.model
    assert not weights_equal(translator.model, trainer.model)
    with trainer.updater.average.applied():
        assert weights_equal(translator.model, trainer.model)
    plain, trainer = train_translator(TINY)
    assert weights_equal(plain.model, trainer.model)


@pytest.mark.slow
def test_the_accelerated_model_is_trained_and_the_plain_one_kept(tmp_path):
    translator, trainer = train_translator(TINY, tmp_path)
    assert type(trainer.model) is FastTransformer and type(translator.model) is Transformer
    shared = zip(translator.model.parameters(), trainer.model.parameters(), strict=True)
    assert all(own is theirs for own, theirs in shared)
    plain = Transformer(translator.model.config)
    set_weights(plain, load_checkpoint(trainer.folder.checkpoints()[-1]), "the checkpoint of the run")
    assert weights_equal(plain, translator.model)
    for changes in ({"average": 0.5}, {"patience": 9}):
        kept, trainer = train_translator(changed(TINY, **changes), tmp_path / str(changes))
        assert type(trainer.model) is FastTransformer and type(kept.model) is Transformer


@pytest.mark.slow
def test_a_patient_run_keeps_its_best_weights(tmp_path):
    # Too high a rate: it gets worse, and ends before its time.
    recipe = changed(TINY, steps=40, evaluate_every=1, warmup_steps=8, peak_rate=3.0, patience=2)
    translator, trainer = train_translator(recipe, tmp_path)
    assert trainer.finished and trainer.scores.best_step == trainer.step - 2 < 38
    loss = trainer.scores.evaluate(translator.model)["loss"]
    losses = [entry["loss"] for entry in trainer.history if "accuracy" in entry]
    assert loss == pytest.approx(min(losses)) and loss < losses[-1]
    nowhere, other = train_translator(recipe)
    assert other.step == trainer.step and weights_equal(nowhere.model, other.model)


def test_a_slice_of_a_patient_run_gives_its_newest_weights(tmp_path):
    recipe = changed(TINY, steps=60, evaluate_every=60, average=0.5, patience=9)
    translator, trainer = train_translator(recipe, tmp_path, max_minutes=0)
    assert 0 < trainer.step < 60 and not (tmp_path / "best.pt").exists()
    with trainer.updater.average.applied():
        assert weights_equal(translator.model, trainer.model)


def test_the_recipes_of_recorded_runs_stay_as_they_were():
    for name in ("toy", "ted-small", "phrases"):
        kept = read_recipe(record_path(f"{name}.json"))  # which tells the precision that was had
        assert RECIPES[name] == changed(kept, precision=RECIPES[name].training.precision)


# A recipe for texts of one's own


def numbers(n: int, length: int = 1) -> list[Pair]:
    return [Pair(f"{row} gatos" * length, f"{row} cats" * length) for row in range(n)]


@pytest.mark.slow
@pytest.mark.parametrize("preparation", PREPARATIONS)
def test_texts_of_many_characters_have_room_for_them(preparation):
    """More than a vocabulary of `recipe_for` has at most; and letters that are composed before they count."""
    many = [Pair("".join(map(chr, range(n, n + 17))), "a") for n in range(0x3400, 0x3400 + 17_000, 17)]
    taken_apart = [Pair(unicodedata.normalize("NFD", "àèìòùáéíóúâêîôûãẽĩõũ"), "a")]
    for pairs in (many, taken_apart):
        recipe = recipe_for(pairs, Preparation(preparation))
        texts = (text for pair in pairs for text in pair)
        assert Vocabulary.train(texts, recipe.data.vocab_size, preparation=recipe.data.prepared)


@pytest.mark.slow
def test_sizes_follow_the_texts(monkeypatch):
    monkeypatch.setattr(transformer.commands.recipes, "_OWN_LIMITS", (1_200, 20_000))
    small, large = recipe_for(numbers(300)), recipe_for(numbers(301, length=10))
    assert (small.model.n_layers, small.model.d_model, small.data.max_tokens) == (2, 128, 1000)
    assert (large.model.n_layers, large.model.d_model, large.data.max_tokens) == (3, 256, 2000)
    assert small.training.steps == 1000 and small.data.preparation == "as it is"
    # Ten digits, the letters of both words, the four special tokens and the space; two words are frequent.
    assert small.data.vocab_size == 5 + 10 + len(set("gatoscats")) + 1
    monkeypatch.setattr(transformer.commands.recipes, "_OWN_LIMITS", (1, 2))
    largest = recipe_for(numbers(9_000, length=5))
    assert (largest.model.n_layers, largest.model.d_model, largest.data.max_tokens) == (6, 512, 4096)
    assert largest.training.steps == 10 * 103  # passes and batches
    for recipe in (small, large, largest):
        assert recipe.schedule.warmup_steps == recipe.training.steps // 8
        assert recipe.rate(recipe.schedule.warmup_steps) == pytest.approx(recipe.schedule.peak_rate)
    with pytest.raises(ValueError, match="hold no words"):
        recipe_for([Pair(" ", "")])


def pairs_of(trainer: Trainer) -> list[Any]:
    """The encoded pairs that a run trains on."""
    batches = trainer.stream.batches
    assert isinstance(batches, TokenBatches)
    return list(batches.pairs)


def vocabulary_of(recipe, pairs):
    texts = (text for pair in pairs for text in pair)
    return Vocabulary.train(texts, recipe.data.vocab_size, preparation=recipe.data.prepared)


def test_what_is_counted_are_the_prepared_texts():
    pairs = [Pair("Gatos GATOS gatos", "Cats CATS cats")] * 5
    assert recipe_for(pairs).data.vocab_size > recipe_for(pairs, Preparation("lower case")).data.vocab_size
    recipe = recipe_for(pairs, Preparation("tokenized", ("pt", "en")))
    assert recipe.data.prepared == CORPORA


@pytest.mark.slow
def test_pairs_of_ones_own_are_trained_on_but_for_those_held_out(tmp_path):
    quick = {"steps": 1, "evaluate_every": 1, "precision": "float32"}
    recipe = changed(recipe_for(numbers(100)), d_model=16, n_heads=2, n_layers=1, d_ff=24, **quick)
    translator, trainer = train_translator(recipe, tmp_path, pairs=numbers(100))
    train, dev = held_out(numbers(100))
    assert pairs_of(trainer) == encode_pairs(train, translator.vocabulary)
    assert translator.vocabulary.pieces == vocabulary_of(recipe, train).pieces
    wanted = evaluate_loss(trainer.model, TokenBatches(encode_pairs(dev, translator.vocabulary), 1000)(0))
    assert trainer.history[-1]["loss"] == pytest.approx(wanted["loss"])
    kept = Translator.load(tmp_path / "translator")
    assert kept.preparation == translator.preparation == AS_IT_IS
    assert kept.translate(["3 gatos"], beam_size=1) == translator.translate(["3 gatos"], beam_size=1)


@pytest.mark.parametrize(("max_tokens", "repeats", "most"), [(40, 40, 40), (5000, 600, 512)])
def test_pairs_that_no_batch_can_hold_are_left_out_and_counted(max_tokens, repeats, most, monkeypatch):
    pairs = [*PAIRS, Pair("o gato " * repeats, "the cat"), Pair("o gato", "the cat " * repeats)]
    monkeypatch.setattr(transformer.commands.data, "load_corpus", lambda corpus, split: pairs)
    with pytest.warns(UserWarning, match=f"2 of 6 pairs have over {most} tokens and are left out"):
        _, trainer = train_translator(changed(TINY, steps=1, max_tokens=max_tokens))
    assert len(pairs_of(trainer)) == 4


def test_a_recipe_of_own_files_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "own.tsv"
    path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in numbers(30)), encoding="utf8")
    recipe = own_recipe(Preparation("lower case", ("pt", "en")), source=path)
    write_record(tmp_path / "config.json", asdict(recipe))
    assert read_recipe(tmp_path / "config.json") == recipe
    data = recipe.data.read()
    assert recipe.data.files == [str(path)] and (data.train, data.dev) == held_out(numbers(30))
    path.write_text("a\tb\n", encoding="utf8")
    with pytest.raises(CorpusError, match="own.tsv has changed: its sha256 was"):
        recipe.data.read()


def test_an_old_recipe_is_that_of_a_corpus_of_the_book(tmp_path):
    values = asdict(RECIPES["phrases"])
    values["data"] = {"corpus": "phrases", "vocab_size": 1200, "max_tokens": 1000}  # and nothing of files
    write_record(tmp_path / "config.json", values)
    assert read_recipe(tmp_path / "config.json") == RECIPES["phrases"]
    assert RECIPES["ted-small"].data.prepared == CORPORA
    with pytest.raises(ValueError, match="name must be one of .*not 'none'"):
        changed(RECIPES["phrases"], preparation="none")
    with pytest.raises(ValueError, match="languages must be two codes"):
        changed(RECIPES["phrases"], languages="pt")


# Records


@pytest.fixture(scope="module")
def record():
    data = ParallelData(TINY.data, corpus("", "train"), corpus("", "dev"), lambda: corpus("", "test"))
    translator, trainer = train_recipe(TINY, data=data)
    return translator, trainer, data.record(translator, trainer.history)


@pytest.mark.slow
def test_record_takes_the_search_from_the_development_split_to_the_test_split(record):
    translator, trainer, kept = record
    assert kept["log"] == trainer.history
    assert kept["parameters"] == sum(p.numel() for p in translator.model.parameters())
    assert json.loads(json.dumps(kept))["grid"] == kept["grid"]
    assert kept["grid"] == tune_search(translator, PAIRS[:2])
    best = Search(kept["grid"][0]["beam_size"], kept["grid"][0]["length_penalty"])
    assert kept["scores"]["dev"]["tuned"] == evaluate_translator(translator, PAIRS[:2], best)
    test = corpus("", "test")
    references = [pair.target for pair in test]
    written = translator.translate_tokenized([pair.source for pair in test], best)
    assert kept["scores"]["test"]["tuned"] == corpus_scores(written, references, 1000, CORPORA)
    assert {"greedy", "beam 4"} < kept["scores"]["test, unseen"].keys()
    pairs = {split: measured["pairs"] for split, measured in kept["scores"].items()}
    assert pairs == {"dev": 2, "test": 2, "test, unseen": 1}
