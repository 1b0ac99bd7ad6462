"""Mistakes in the trainer."""

from faults import Fault

MODULE = "training"
FAULTS = [
    Fault(
        "damaged-begins-anew",
        "a run whose checkpoints are all damaged begins anew",
        "_newest_whole",
        "if damaged:",
        "if not paths:",
    ),
    Fault(
        "gradients-pile-up",
        "gradients of earlier updates are not cleared",
        "Trainer.update",
        "self.optimizer.zero_grad()",
        "pass",
    ),
    Fault(
        "unscale-missing",
        "with float16, the gradient is clipped while it is still scaled",
        "Trainer.update",
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
        "Trainer.save",
        "save_checkpoint(self._path(), state)\n            self._tidy()",
        "self._tidy()\n            save_checkpoint(self._path(), state)",
    ),
    Fault(
        "folder-without-a-lock",
        "two processes may train in one folder",
        "Trainer._alone",
        "self._lock.acquire(timeout=0)",
        "pass",
    ),
    Fault(
        "random-state-not-restored",
        "a resumed run draws another dropout",
        "Trainer._restore",
        'set_random_state(state["random"][self.rank], self.device)',
        "pass",
    ),
    Fault(
        "patience-forgotten",
        "a resumed run counts its patience from 0",
        "Trainer._restore",
        "vars(self).update(place)",
        'vars(self).update(place | {"stale": 0})',
    ),
    Fault(
        "rest-of-epoch-dropped",
        "batches that do not fill an update at the end of an epoch are lost",
        "Trainer._groups",
        "for batch in batches:",
        "group = []\n            for batch in batches:",
    ),
    Fault(
        "skipping-disturbs-dropout",
        "skipping batches changes what dropout draws afterwards",
        "Trainer._groups",
        "torch.random.fork_rng(devices=[])",
        "nullcontext()",
    ),
    Fault(
        "processes-share-nothing",
        "every process trains on the same batches",
        "Trainer._groups",
        "self.rank :: self.world_size",
        ": self.config.accumulate",
    ),
]
