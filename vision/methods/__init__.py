"""Methods for images, one file each; importing the package makes them known."""

from stforecast.federated.method import import_all

import_all(__name__, __path__)
