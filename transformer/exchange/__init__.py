"""transformer.exchange: torch, foreign, marian, m2m100, llama, ctranslate2, onnx.

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""
