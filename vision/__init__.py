"""Images on the same federated core; PFPL, GLDP and FedTA are to come."""
