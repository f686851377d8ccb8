"""A federation over a link: messages, membership, nodes, and the server that coordinates them."""
