"""Methods for any task, one file each; found by `stforecast.federated.core.method.methods`."""
