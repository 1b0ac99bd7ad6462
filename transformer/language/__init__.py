"""transformer.language: wording, batches, vocabulary, corpora, translator, folder, hub, scores.

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""
