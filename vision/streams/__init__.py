"""Task streams of an image set: who has which images in which stage.

Adding a kind is one file here with a subclass of `Streamer` that has a `name`.
"""

from collections.abc import Mapping

from stforecast.federated.method import import_all
from vision.streams.base import Streamer, TaskStream

__all__ = ["STREAMS", "Streamer", "TaskStream"]

import_all(__name__, __path__)

STREAMS: Mapping[str, type[Streamer]] = {
    cls.name: cls for cls in sorted(Streamer.__subclasses__(), key=lambda c: c.name) if cls.name
}
"""Every kind of stream by name; the fields of each are its options."""
