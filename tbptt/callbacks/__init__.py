"""What watches a run: numbers, progress, checkpoints, samples."""

from tbptt.callbacks.checkpoints import CheckpointFiles, Checkpoints
from tbptt.callbacks.interrupt import Interrupted
from tbptt.callbacks.monitor import Monitor
from tbptt.callbacks.progress import Progress
from tbptt.callbacks.samples import Samples

__all__ = ["CheckpointFiles", "Checkpoints", "Interrupted", "Monitor", "Progress", "Samples"]
