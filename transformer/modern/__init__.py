"""transformer.modern: parts, language_model, generate.

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""
