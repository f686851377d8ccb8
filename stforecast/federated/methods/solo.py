"""Solo: each client trains on its own data and sends nothing.

A baseline for federated methods (FUELS, arXiv 2404.03702, appendix D.1).
"""

from stforecast.federated.core.declared import Attacked, Upload
from stforecast.federated.core.method import Method
from stforecast.federated.core.options import names_of
from stforecast.federated.core.training import SLOW
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink


class Solo(Method):
    """Local training only, which the base class implements."""

    name = "solo"
    summary = "each client trains alone; nothing is sent"
    paper = "FUELS, appendix D.1"
    attacked = Attacked(unguarded="its clients send nothing")
    sends = Upload(needs_each="its clients send nothing")
    unread = names_of(Uplink, Robust) | SLOW
