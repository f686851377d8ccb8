"""Methods that serve any task, one file each; `stforecast.federated.method.methods` finds them."""
