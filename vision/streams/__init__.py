"""Task streams of an image set: the images of each client in each stage.

To add a kind, add a file with a subclass of `Streamer` that has a `name`.
"""

from data_prep.base.registry import Registry, is_named
from vision.streams.base import Streamer

STREAMS: Registry[type[Streamer]] = Registry(
    "task stream", "vision.streams", is_entry=is_named(Streamer), group="stforecast.streams"
)
"""Every kind of stream by name; its fields are its options."""
