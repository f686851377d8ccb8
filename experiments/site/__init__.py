"""The documentation site: hooks of MkDocs, generated references, equations as MathML."""
