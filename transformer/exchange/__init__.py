"""transformer.exchange: torch, foreign, marian, llama, ctranslate2, onnx.

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""
