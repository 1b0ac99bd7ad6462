"""Mistakes in the trainer."""

from faults import Fault

FAULTS = [
    Fault(
        "gradients-pile-up",
        "gradients of earlier updates are not cleared",
        "Updater.__call__",
        "self.optimizer.zero_grad()",
        "pass",
    ),
    Fault(
        "unscale-missing",
        "with float16, the gradient is clipped while it is still scaled",
        "Updater.__call__",
        "self.scaler.unscale_(self.optimizer)",
        "pass",
    ),
    Fault(
        "rate-one-step-late",
        "an update has the rate of the one before",
        "Trainer.update",
        "rate = self.schedule(self.step + 1)",
        "rate = self.schedule(max(self.step, 1))",
    ),
    Fault(
        "best-before-the-checkpoint",
        "best weights are replaced before a checkpoint knows of them",
        "Run.save",
        "save_checkpoint(self.folder.checkpoint(self.step), state)\n            self._tidy(self.folder)",
        "self._tidy(self.folder)\n            save_checkpoint(self.folder.checkpoint(self.step), state)",
    ),
    Fault(
        "random-state-not-restored",
        "a resumed run draws another dropout",
        "_restore_random",
        "set_random_state(states[rank], device)",
        "pass",
    ),
    Fault(
        "patience-forgotten",
        "a resumed run counts its patience from 0",
        "RunState._set_progress",
        "update(counts, best=best)",
        'update(counts | {"stale": 0}, best=best)',
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
        "BatchStream._rest_of_epoch",
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
    Fault(
        "infinite-loss-passes",
        "an infinite loss does not stop the run",
        "check_finite",
        "(~values.isfinite())",
        "values.isnan()",
    ),
    Fault(
        "line-is-a-mean-of-means",
        "in a line of the log, short batches count as much as long ones",
        "LogLine.entry",
        "losses.double().sum().item() / max(tokens, 1)",
        "(losses.double() / counts.clamp(min=1)).mean().item()",
    ),
]
