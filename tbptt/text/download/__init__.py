"""Named corpora: their files downloaded once, checked always, and counted when they are prepared."""

from tbptt.text.download.counts import check_counts
from tbptt.text.download.files import fetch

__all__ = ["check_counts", "fetch"]
