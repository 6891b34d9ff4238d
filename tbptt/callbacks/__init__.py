"""What watches a run: numbers, progress, checkpoints, samples."""

from tbptt.callbacks.checkpoints import Checkpoints
from tbptt.callbacks.monitor import Monitor
from tbptt.callbacks.progress import Progress
from tbptt.callbacks.samples import Samples

__all__ = ["Checkpoints", "Monitor", "Progress", "Samples"]
