"""Methods for any task, one file each; the registries of forecasts and of images list them."""
