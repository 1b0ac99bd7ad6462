"""transformer.commands: recipes, serve, terminal, translate, evaluate, info, check, options, train.

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""
