"""transformer.language: wording, batches, vocabulary, corpora, scores, translator, folder, hub.

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""
