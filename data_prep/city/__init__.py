"""An invented city: its cells, their activity and the raw days that it writes."""
