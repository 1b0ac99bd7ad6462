"""Mistakes in `transformer.speed.fast`."""

from faults import Fault

FAULTS = [
    Fault(
        "dropout-in-use",
        "dropout is on in evaluation mode",
        "FastDropout.forward",
        "self.training and self.p",
        "self.p",
    ),
    Fault(
        "subclasses-allowed",
        "a subclass of the fast model overrides what its searches do not call",
        "FastTransformer.__init_subclass__",
        "not overrides_nothing",
        "False",
    ),
    Fault(
        "smoothing-not-passed-on",
        "the batch loss smooths by the default, whatever was asked for",
        "_teacher_forced_loss",
        "targets, smoothing, pad_id",
        "targets, pad_id=pad_id",
    ),
    Fault(
        "lean-always-pre-norm",
        "a search's steps know one order of norm and sum",
        "_LayerStep.__call__",
        "if self.norm_first",
        "if True",
    ),
    Fault(
        "lean-beams-mixed-up",
        "the beams of one sentence are read as those of different sentences",
        "_LayerStep.attend_memory",
        ".view(self.query_shape).transpose(1, 2)",
        ".view(self.query_shape[1], -1, *self.query_shape[2:]).permute(1, 2, 0, 3)",
    ),
    Fault(
        "lean-empty-sources-are-read",
        "in a search, a source of padding alone is attended to",
        "_LayerStep.__init__",
        "empty is not None",
        "False",
    ),
    Fault(
        "lean-kernels-of-all-sentences",
        "a search goes on with the kernels that were chosen for all of its rows",
        "FastDecoderState.keep",
        "layer.prepare(len(rows))",
        "layer.prepare(self.positions.size(0))",
    ),
    Fault(
        "mask-dropped-too-early",
        "one sentence without padding speaks for all",
        "FastDecoderState.__init__",
        "mask.all",
        "mask[:1].all",
    ),
    Fault(
        "order-of-as-many-rows-is-the-old-one",
        "a new order of equally many rows is taken for the old one",
        "FastDecoderState.keep",
        "torch.equal(rows, torch.arange(len(rows)))",
        "True",
    ),
    Fault(
        "steps-keep-the-mask",
        "sentences that go on are masked like those that have left",
        "FastDecoderState.keep",
        "None if self.memory_mask is None else self.memory_mask[sentences]",
        "self.memory_mask",
    ),
]
