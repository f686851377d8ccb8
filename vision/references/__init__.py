"""References for tables of images, one file each: accuracies without a federated method."""
