"""transformer.modern: language_model, generate, parts.

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""
