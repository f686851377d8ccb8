"""FUELS on the cells of an invented city, as a Flower app."""
