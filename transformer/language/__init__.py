"""transformer.language: vocabulary, batches, translator, folder, hub, scores, wording, bpe_file, ….

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""
