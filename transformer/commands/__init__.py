"""transformer.commands: recipes, terminal, translate, evaluate, info, check, options, train, serve.

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""
