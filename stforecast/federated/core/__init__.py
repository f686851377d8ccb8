"""What a method is made of: state, population, data, prototypes, training."""
