"""Federated learning of images on the core of `stforecast`: PFPL, GLDP and FedTA."""
