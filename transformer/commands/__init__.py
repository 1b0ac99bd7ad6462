"""transformer.commands: recipes, data, own_texts, sizes, training, terminal, options, claim, train_texts, ….

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""
