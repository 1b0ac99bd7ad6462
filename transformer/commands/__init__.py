"""transformer.commands: data, own_texts, recipes, sizes, training, terminal, translate, evaluate, info, ….

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""
