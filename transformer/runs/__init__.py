"""transformer.runs: accumulation, precision, averaging, checkpoints, folder, distributed, update, stream, ….

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""
