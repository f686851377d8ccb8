"""Tables of a user's own: reading files, understanding columns and times, making cubes."""
