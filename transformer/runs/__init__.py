"""transformer.runs: folder, precision, checkpoints, accumulation, distributed, averaging, update, stream, ….

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""
