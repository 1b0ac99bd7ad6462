"""transformer.speed: chunked_loss, kernels, int8, fast, configured, costs, planner.

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""
