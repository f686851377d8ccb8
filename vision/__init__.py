"""Images on the same federated core: the home of PFPL, GLDP and FedTA, of which none is here yet."""
