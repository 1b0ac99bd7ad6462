"""transformer.exchange: marian, foreign, ctranslate2, onnx, torch, llama.

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""
