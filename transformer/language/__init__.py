"""From text to a translator: vocabularies, batches, corpora, scores."""
