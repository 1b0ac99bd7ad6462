"""transformer.study: equality, inspection, phrases, checks, readings, loss_checks, training_checks, ….

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""
