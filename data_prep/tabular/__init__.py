"""Users' own tables: read files, parse columns and times, make cubes."""
