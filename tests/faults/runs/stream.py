"""Mistakes in `transformer.runs.stream`."""

from faults import Fault

FAULTS = [
    Fault(
        "random-state-not-restored",
        "a resumed run draws another dropout",
        "RandomNumbers.load_state_dict",
        "set_random_state(states[rank], self.device)",
        "pass",
    ),
    Fault(
        "shuffled-anew-on-resuming",
        "a data loader gives other batches when the run is resumed",
        "BatchStream._epoch",
        "torch.set_rng_state(drawn)",
        "pass",
    ),
    Fault(
        "rest-of-epoch-alone",
        "batches that do not fill an update at the end of an epoch make a smaller one",
        "BatchStream.__iter__",
        "if self.position == 0:",
        "if group:\n                yield group[self.rank :: self.world_size]\n                group = []\n            if self.position == 0:",
    ),
    Fault(
        "skipping-disturbs-dropout",
        "skipping batches changes what dropout draws afterwards",
        "BatchStream._epoch",
        "torch.random.fork_rng(devices=[])",
        "nullcontext()",
    ),
    Fault(
        "processes-share-nothing",
        "every process trains on the same batches",
        "BatchStream.__iter__",
        "self.rank :: self.world_size",
        ": self.size // self.world_size",
    ),
]
