"""Mistakes in `transformer.plots`."""

from faults import Fault

FAULTS = [
    Fault(
        "grey-by-largest-weight",
        "each map is black at its own largest weight",
        "plot_attention",
        ", vmin=0, vmax=1",
        "",
    ),
]
