"""References for tables of images, one file each: what is reached without a federated method."""
