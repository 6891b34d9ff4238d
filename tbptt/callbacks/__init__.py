"""What watches a run: numbers, progress, checkpoints, samples."""

from tbptt.callbacks.checkpoints import CheckpointFiles, Checkpoints
from tbptt.callbacks.monitor import Monitor
from tbptt.callbacks.progress import Progress
from tbptt.callbacks.samples import Samples

__all__ = ["CheckpointFiles", "Checkpoints", "Monitor", "Progress", "Samples"]
