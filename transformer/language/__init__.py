"""transformer.language: vocabulary, batches, scores, wording, bpe_file, bpe_dropout, corpora, doubts, ….

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""
